"""From the JSON of runs to something to look at."""

from lbdrop.report.demo import rates_in_words, render, write_page
from lbdrop.report.page import percent, plus_minus

__all__ = ["percent", "plus_minus", "rates_in_words", "render", "write_page"]
