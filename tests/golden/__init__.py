"""Short runs recorded in full precision: code that moves must give the same numbers. See :mod:`.records`."""
