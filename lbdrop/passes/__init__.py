"""One pass of a model under many masks: what they share is computed once."""
