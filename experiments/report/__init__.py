"""From the JSON records of runs to a page."""
