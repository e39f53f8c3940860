"""Run a model under many masks, and compute what does not depend on a mask only once."""
