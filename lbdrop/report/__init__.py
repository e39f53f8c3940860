"""From the JSON of a run to something to look at."""

from lbdrop.report.page import percent, plus_minus, rates_in_words, render, write_page

__all__ = ["percent", "plus_minus", "rates_in_words", "render", "write_page"]
