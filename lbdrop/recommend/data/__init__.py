"""Tables of likes, their splits, and batches of rows."""
