"""The JSON records of recommender runs, read and checked, and what the literature printed on the same protocol.

Boluki et al., Learnable Bernoulli Dropout for Bayesian Deep Learning, AISTATS 2020, table 3.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.report.runs import Json, check, distinct
from experiments.report.schema import anything, fields, item, listed, mapped, maybe, number, text, truth, whole

__all__ = ["GRIDS", "MEASURES", "METHODS", "PAPER", "USERS", "key", "read"]

MEASURES = {"recall@20": "Recall@20", "recall@50": "Recall@50", "ndcg@100": "NDCG@100"}

GRIDS = {"vae-drop": "the paper's encoder", "vae-dense-drop": "the dense encoder"}
"""Methods whose fixed rate is chosen from a grid."""

METHODS: tuple[str, ...] = (
    "sivae-lbd", "sivae-lbd-one", "sivae-lbd-tuned", "sivae-lbd-dense", "sivae-lbd-dense-tuned", "sivae-lbd-gated",
    "sivae-lbd-gated-tuned", "sivae-gaussian", "sivae-concrete", "vae-vamp-drop", "vae-vamp", "vae-iaf-drop", "vae-iaf",
    "vae-drop", "vae-dense-drop", "vae", "dae", "recvae", "h-vamp", "cdae", "wmf", "ials", "slim", "ease", "popularity",
)  # fmt: skip
"""The order of the table."""

USERS = {"ml-20m": 136_677, "netflix": 463_435, "msd": 571_355, "ml-1m": 6_034}
"""Users of the complete data after filtering."""

# Recall@20, Recall@50 and NDCG@100 in per cent as printed, each on ML-20M, Netflix and MSD.
_PRINTED = {
    "sivae-lbd": ("SIVAE+LBDrop", 39.95, 35.63, 27.18, 53.95, 44.70, 37.36, 43.01, 39.04, 32.33),
    "sivae-gaussian": ("SIVAE+GDrop", 35.77, 31.43, 22.50, 49.45, 40.68, 31.01, 38.69, 35.05, 26.99),
    "sivae-concrete": ("SIVAE+CDrop", 37.19, 32.07, 24.32, 51.30, 41.52, 33.19, 39.90, 35.67, 29.10),
    "vae-vamp-drop": ("VAE-VampPrior+Drop", 39.65, 35.15, 26.26, 53.63, 44.43, 35.89, 42.56, 38.68, 31.37),
    "vae-vamp": ("VAE-VampPrior", 35.84, 31.09, 22.02, 50.27, 40.81, 30.33, 38.57, 34.86, 26.57),
    "vae-iaf-drop": ("VAE-IAF+Drop", 39.29, 34.65, 25.65, 53.52, 44.02, 34.96, 42.37, 38.21, 30.67),
    "vae-iaf": ("VAE-IAF", 35.94, 32.77, 21.92, 50.28, 41.95, 30.23, 38.85, 36.23, 26.50),
    "vae-drop@0.5": ("VAE+Drop", 39.47, 35.16, 26.36, 53.53, 44.38, 36.21, 42.63, 38.60, 31.33),
    "vae": ("VAE", 35.67, 31.12, 21.98, 49.89, 40.78, 30.33, 38.53, 34.86, 26.49),
    "dae": ("DAE", 38.58, 34.50, 25.89, 52.28, 43.41, 35.23, 41.92, 37.85, 31.04),
    "wmf": ("WMF", 36.00, 31.60, 21.10, 49.80, 40.40, 31.20, 38.60, 35.10, 25.70),
    "slim": ("SLIM", 37.00, 34.70, None, 49.50, 42.80, None, 40.10, 37.90, None),
    "cdae": ("CDAE", 39.10, 34.30, 18.80, 52.30, 42.80, 28.30, 41.80, 37.60, 23.70),
}  # fmt: skip
_ELSEWHERE = {
    "ease": ("EASE, Steck 2019", 39.1, 36.2, 33.3, 52.1, 44.5, 42.8, 42.0, 39.3, 38.9),
    "recvae": ("RecVAE, Shenbin et al. 2020", 41.4, 36.1, 27.6, 55.3, 45.2, 37.4, 44.2, 39.4, 32.6),
    "h-vamp": ("H+Vamp, Kim & Suh 2019", 41.3, 37.7, None, 55.1, 46.3, None, 44.5, 40.9, None),
    "ials": ("iALS, Rendle et al. 2022", 39.5, None, 30.9, 53.2, None, 41.5, 42.5, None, 36.8),
}  # fmt: skip
_SETS = ("ml-20m", "netflix", "msd")
PAPER: dict[str, dict[str, Any]] = {
    row: {
        "label": label,
        "paper": row in _PRINTED,
        "numbers": {
            name: dict(zip(MEASURES, (value / 100 for value in values[column :: len(_SETS)]), strict=True))
            for column, name in enumerate(_SETS)
            if values[column] is not None
        },
    }
    for row, (label, *values) in {**_PRINTED, **_ELSEWHERE}.items()
}
"""By the key of a row: what it is called there, whether that is the paper's own table, and its numbers by data set."""

_MEANS = fields(
    {
        "mean": fields(dict.fromkeys(MEASURES, number)),
        "standard_error": fields(dict.fromkeys(MEASURES, maybe(number))),  # of one user's mean there is no error
        "users": number, "coverage": number, "popularity": number,
    }
)  # fmt: skip
_USER = fields(
    {"items": whole, "held_out": whole, "has": listed(item), "shown": listed(fields({"item": item, "held_out": truth}))}
)
_BIN = fields({"items": whole, "keep": number})
RUN = fields(
    {
        "dataset": text, "method": text, "label": text, "seed": whole, "protocol": text, "rate": maybe(number),
        "settings": fields({}, {"epochs": number, "alternate": maybe(number)}), "provenance": fields({}),
        "data": mapped(number), "validation": _MEANS, "test": _MEANS,
        "seconds": fields({}, {"per_epoch": maybe(number), "train": maybe(number)}),
        "history": listed(fields({"epoch": number}, {"ndcg@100": maybe(number), "keep": maybe(number)})),
        "examples": listed(_USER),
        "rates": maybe(fields({"keep": number}, {"by_popularity": maybe(listed(_BIN, least=1))})),
        "best": maybe(fields({"epoch": number, "beta": number})), "masks": maybe(fields({"at_test": whole})),
        "choice": maybe(fields({"tried": listed(anything), "chosen": mapped(number)})),
    },
    {"peak_bytes": maybe(number)},
)  # fmt: skip
"""What the page draws; whatever else a record has is left aside."""


def key(run: Json) -> str:
    """A row of the table: the method, and in a grid its rate."""
    return f"{run['method']}@{run['rate']:g}" if run["rate"] is not None else run["method"]


def read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """All runs of these files and folders, each with the ``file`` it came from; what is no such run raises."""
    return distinct(paths, _check, lambda run: (run["dataset"], key(run), run["seed"]), "data, method, rate and seed")


def _check(path: Path, run: Json) -> None:
    check(path, run, "collaborative", RUN, "recommender run")
