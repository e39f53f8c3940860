"""How rates are learned: what a rule is, the paper's bound, and balanced noise from held-out data."""
