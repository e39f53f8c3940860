"""The data sets of the literature, from their official files to the folders that ``lbdrop reproduce`` reads."""
