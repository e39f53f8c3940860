"""Files: written whole or not at all, read within bounds, records with their provenance."""
