"""Every place where a model draws a mask: found, given a rate, and taken out again."""
