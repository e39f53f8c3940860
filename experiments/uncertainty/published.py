"""What others published on the nine UCI sets: means over the same splits, and what they give as their spread.

Figures of papers are copied by hand from the tables named here; nothing of them is computed.
"""

from typing import NamedTuple

__all__ = ["PUBLISHED", "Row"]

SETS = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht")


class Row(NamedTuple):
    """One published method."""

    label: str
    source: str
    rmse: dict[str, float]
    ll: dict[str, float]


def _row(label: str, source: str, rmse: tuple[float, ...], ll: tuple[float, ...]) -> Row:
    return Row(label, source, dict(zip(SETS, rmse, strict=True)), dict(zip(SETS, ll, strict=True)))


ENSEMBLES_TABLE = "Lakshminarayanan et al. 2017, table 1"
PUBLISHED = {
    "pbp": _row(
        "PBP", f"Hernández-Lobato and Adams 2015, as in {ENSEMBLES_TABLE}",
        (3.01, 5.67, 1.80, 0.10, 0.01, 4.12, 4.73, 0.64, 1.02), (-2.57, -3.16, -2.04, 0.90, 3.73, -2.84, -2.97, -0.97, -1.63),
    ),
    "mc-2016": _row(
        "MC dropout, 2016", f"Gal and Ghahramani 2016, as in {ENSEMBLES_TABLE}",
        (2.97, 5.23, 1.66, 0.10, 0.01, 4.02, 4.36, 0.62, 1.11), (-2.46, -3.04, -1.99, 0.95, 3.80, -2.80, -2.89, -0.93, -1.55),
    ),
    "mc-2018": _row(
        "MC dropout, 2018", "means of the logs in github.com/yaringal/DropoutUncertaintyExps (a grid a split)",
        (2.904, 4.826, 0.539, 0.0789, 0.00074, 4.014, 4.274, 0.622, 0.666),
        (-2.402, -2.937, -1.212, 1.136, 4.450, -2.808, -2.871, -0.928, -1.250),
    ),
    "concrete-2017": _row(
        "Concrete dropout", "Gal et al. 2017, as quoted in table 1 of Wasserstein Gradient Boosting, Matsubara 2024",
        (2.65, 4.46, 0.46, 0.07, 0.00, 3.70, 3.85, 0.62, 0.57), (-2.72, -3.51, -2.30, 0.65, 5.87, -2.75, -2.81, -1.70, -1.75),
    ),
    "ensembles-2017": _row(
        "ensembles of 5, 2017", ENSEMBLES_TABLE,
        (3.28, 6.03, 2.09, 0.09, 0.00, 4.11, 4.71, 0.64, 1.58), (-2.41, -3.06, -1.38, 1.20, 5.63, -2.79, -2.83, -0.94, -1.18),
    ),
}  # fmt: skip
"""No table of Gal et al. 2017 could be read, to check how Concrete dropout is quoted."""
