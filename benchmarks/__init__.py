"""Side-by-side measurements, one script per claim; each writes its record to ``results/``."""
