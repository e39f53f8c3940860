"""Files: written completely or not at all, read within bounds, and records with their provenance."""
