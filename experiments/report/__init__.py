"""From the JSON of runs to something to look at."""
