"""The recommender's table, declared in one place: rows with published numbers, grids, data sets, and what a record holds.

Boluki et al., Learnable Bernoulli Dropout for Bayesian Deep Learning, AISTATS 2020, table 3; the protocol is that of Liang
et al., Variational Autoencoders for Collaborative Filtering, WWW 2018.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from experiments.report.records import Json, check, distinct
from experiments.report.schema import anything, fields, item, listed, mapped, maybe, number, text, truth, whole

__all__ = [
    "DATA", "FIGURES", "GRIDS", "GRID_RATES", "MEASURE", "MEASURES", "PUBLISHED", "RIVALS", "ROWS", "USUAL_RATE", "DataSet",
    "Grid", "Published", "Row", "key", "read",
]  # fmt: skip

# ------------------------------------------------------------------------------------------------------------- measures

MEASURES = {"recall@20": "Recall@20", "recall@50": "Recall@50", "ndcg@100": "NDCG@100"}
MEASURE = "ndcg@100"
"""What validation chooses by, and what rows are compared by."""

# ----------------------------------------------------------------------------------------------------------------- rows

PUBLISHED_DATA = ("ml-20m", "netflix", "msd")
"""The data sets that :class:`Published` has numbers on, in its order."""


@dataclass(frozen=True)
class Published:
    """Recall@20, Recall@50 and NDCG@100 in per cent as they were printed, each on the three data sets."""

    label: str
    percent: tuple[float | None, ...]
    in_the_paper: bool = True
    """Whether it stands in the paper's own table; elsewhere its authors printed it."""

    @property
    def numbers(self) -> dict[str, dict[str, float]]:
        """By data set, those that have all three, as shares of one."""
        columns = {name: self.percent[i :: len(PUBLISHED_DATA)] for i, name in enumerate(PUBLISHED_DATA)}
        return {
            name: dict(zip(MEASURES, (value / 100 for value in values if value is not None), strict=True))
            for name, values in columns.items()
            if values[0] is not None
        }


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    name: str
    label: str
    colour: str = "other"
    """A family of :data:`experiments.report.style.FAMILIES`."""
    dash: str = ""
    published: Published | None = None
    tried: tuple[Mapping[str, Any], ...] = ()
    """Of a rival without a network, the settings among which validation chooses."""


def _rival(name: str, label: str, published: Published | None, *tried: Mapping[str, Any]) -> Row:
    return Row(name, label, published=published, tried=tried)


ROWS = {
    row.name: row
    for row in (
        Row("sivae-lbd", "SIVAE+LBDrop, a rate per item", "lbd",
            published=Published("SIVAE+LBDrop", (39.95, 35.63, 27.18, 53.95, 44.70, 37.36, 43.01, 39.04, 32.33))),
        Row("sivae-lbd-one", "SIVAE+LBDrop, one rate", "lbd", "7 3"),
        Row("sivae-lbd-tuned", "SIVAE+LBDrop, self-tuned", "tuned", "2 3"),
        Row("sivae-lbd-dense", "SIVAE+LBDrop, dense encoder", "lbd"),
        Row("sivae-lbd-dense-tuned", "SIVAE+LBDrop, self-tuned, dense encoder", "tuned", "2 3"),
        Row("sivae-lbd-gated", "SIVAE+LBDrop, gated, two levels", "lbd", "7 3"),
        Row("sivae-lbd-gated-tuned", "SIVAE+LBDrop, self-tuned, gated, two levels", "tuned", "9 2 2 2"),
        Row("sivae-gaussian", "SIVAE+GDrop", "gaussian",
            published=Published("SIVAE+GDrop", (35.77, 31.43, 22.50, 49.45, 40.68, 31.01, 38.69, 35.05, 26.99))),
        Row("sivae-concrete", "SIVAE+CDrop", "concrete",
            published=Published("SIVAE+CDrop", (37.19, 32.07, 24.32, 51.30, 41.52, 33.19, 39.90, 35.67, 29.10))),
        Row("vae-vamp-drop", "VAE-VampPrior+Drop", "mc",
            published=Published("VAE-VampPrior+Drop", (39.65, 35.15, 26.26, 53.63, 44.43, 35.89, 42.56, 38.68, 31.37))),
        Row("vae-vamp", "VAE-VampPrior",
            published=Published("VAE-VampPrior", (35.84, 31.09, 22.02, 50.27, 40.81, 30.33, 38.57, 34.86, 26.57))),
        Row("vae-iaf-drop", "VAE-IAF+Drop", "mc", "7 3",
            published=Published("VAE-IAF+Drop", (39.29, 34.65, 25.65, 53.52, 44.02, 34.96, 42.37, 38.21, 30.67))),
        Row("vae-iaf", "VAE-IAF", dash="7 3",
            published=Published("VAE-IAF", (35.94, 32.77, 21.92, 50.28, 41.95, 30.23, 38.85, 36.23, 26.50))),
        Row("vae-drop", "VAE+Drop", "mc",
            published=Published("VAE+Drop", (39.47, 35.16, 26.36, 53.53, 44.38, 36.21, 42.63, 38.60, 31.33))),
        Row("vae-dense-drop", "VAE+Drop, dense encoder", "mc"),
        Row("vae", "VAE", published=Published("VAE", (35.67, 31.12, 21.98, 49.89, 40.78, 30.33, 38.53, 34.86, 26.49))),
        Row("dae", "DAE", "mc", "2 3",
            published=Published("DAE", (38.58, 34.50, 25.89, 52.28, 43.41, 35.23, 41.92, 37.85, 31.04))),
        Row("recvae", "RecVAE", "mc", "7 3",
            published=Published(
                "RecVAE, Shenbin et al. 2020", (41.4, 36.1, 27.6, 55.3, 45.2, 37.4, 44.2, 39.4, 32.6), False
            )),
        Row("h-vamp", "H+Vamp", "mc", "2 3",
            published=Published(
                "H+Vamp, Kim & Suh 2019", (41.3, 37.7, None, 55.1, 46.3, None, 44.5, 40.9, None), False
            )),
        Row("cdae", "CDAE", "mc", "9 2 2 2",
            published=Published("CDAE", (39.10, 34.30, 18.80, 52.30, 42.80, 28.30, 41.80, 37.60, 23.70))),
        _rival(
            "wmf", "WMF", Published("WMF", (36.00, 31.60, 21.10, 49.80, 40.40, 31.20, 38.60, 35.10, 25.70)),
            *({"factors": 200, "alpha": alpha, "regularisation": ridge}
              for alpha, ridge in ((3.0, 30.0), (3.0, 100.0), (10.0, 100.0), (10.0, 300.0))),
        ),
        _rival(
            "ials", "iALS",
            Published("iALS, Rendle et al. 2022", (39.5, None, 30.9, 53.2, None, 41.5, 42.5, None, 36.8), False),
            *({"factors": 256, "unobserved": unobserved, "regularisation": ridge}
              for unobserved, ridge in ((0.1, 0.003), (0.1, 0.01), (0.3, 0.003), (0.3, 0.01))),
        ),
        _rival(
            "slim", "SLIM", Published("SLIM", (37.00, 34.70, None, 49.50, 42.80, None, 40.10, 37.90, None)),
            *({"alpha": value, "l1_ratio": 0.01} for value in (0.01, 0.05, 0.2)),
        ),
        _rival(
            "ease", "EASE", Published("EASE, Steck 2019", (39.1, 36.2, 33.3, 52.1, 44.5, 42.8, 42.0, 39.3, 38.9), False),
            *({"regularisation": value} for value in (200.0, 500.0, 1000.0, 2000.0)),
        ),
        _rival("popularity", "popularity", None, {}),
    )
}  # fmt: skip
"""All rows by name, in the order of the table: ours come first, and with the paper's stand stronger rivals published since."""

RIVALS = tuple(name for name, row in ROWS.items() if row.tried)
"""Rows without a network."""

# ---------------------------------------------------------------------------------------------------------------- grids

GRID_RATES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
USUAL_RATE = 0.5
"""Of a grid's row where no rate is given; published numbers are of it."""

RETIRED = ("sivae-lbd-tuned", "sivae-lbd-dense-tuned", "sivae-lbd-gated-tuned")
"""Rows that cannot be run any more: self-tuned rates, which followed held-out users through responses of the weights."""
LAST_SELF_TUNING = "1554abc"
"""The last commit at which they could."""


@dataclass(frozen=True)
class Grid:
    """Fixed rates on one encoder, of which validation chooses one, and the rows that learn their rates on it."""

    label: str
    learned: tuple[str, ...]
    rate_zero: str | None = None
    """The row that is the grid's rate 0; the grid's own where there is none such."""


GRIDS = {
    "vae-drop": Grid(
        "the paper's encoder",
        ("sivae-lbd", "sivae-lbd-one", "sivae-lbd-tuned", "sivae-concrete", "sivae-gaussian"),
        rate_zero="vae",
    ),
    "vae-dense-drop": Grid("the dense encoder", ("sivae-lbd-dense", "sivae-lbd-dense-tuned")),
}
"""By the row whose fixed rate is chosen."""

PUBLISHED = {
    f"{name}@{USUAL_RATE:g}" if name in GRIDS else name: row.published for name, row in ROWS.items() if row.published
}
"""By the key of a row."""

FIGURES = {
    "The paper's encoder": (*GRIDS["vae-drop"].learned, "vae-drop", "vae"),
    "Other posteriors, priors and autoencoders": (
        "vae-drop", "vae-vamp-drop", "vae-iaf-drop", "dae", "cdae", "vae-vamp", "vae-iaf",
    ),
    "Stronger encoders": (
        *GRIDS["vae-dense-drop"].learned, "sivae-lbd-gated", "sivae-lbd-gated-tuned", "vae-dense-drop", "recvae", "h-vamp",
    ),
}  # fmt: skip
"""Which rows have their training drawn in one figure."""

# ------------------------------------------------------------------------------------------------------------ data sets


class DataSet(NamedTuple):
    """How long to train, and over how many steps the KL's weight would rise to 1 (it stops at its cap)."""

    epochs: int
    anneal_steps: int
    batch: int = 500
    published: bool = True
    users: int | None = None
    """Of the complete data after filtering."""
    dense: Mapping[str, Any] = MappingProxyType({})
    """What methods with the dense encoder change; RecVAE keeps its own."""
    bound: Mapping[str, Any] = MappingProxyType({})
    """What methods change whose rates are learned under the bound."""


# Chosen on validation (LOG.md): RecVAE's weight of the KL is too much here, and so much data wants more units.
_WIDE = {"gamma": None, "hidden": 1200, "lr": 1e-3, "final_lr": 0.02}
DATA = {
    "ml-20m": DataSet(200, 200_000, users=136_677),
    # Many steps want a mask's KL that holds the rates; chosen on validation (LOG.md).
    "netflix": DataSet(100, 200_000, users=463_435, dense=_WIDE, bound={"mask_kl": 4.0}),
    # A tenth of Netflix's training users, all settings the methods' own.
    "netflix-sample": DataSet(100, 20_900, published=False),
    "msd": DataSet(100, 200_000, users=571_355),
    "ml-1m": DataSet(50, 5_750, batch=100, published=False, users=6_034),
}
"""Epochs of the paper, annealing of Liang et al. MovieLens-1M is in neither: small batches make 46 steps an epoch of its
few users, and the KL's weight reaches its cap half-way, as on Netflix and its sample (:mod:`.samples`)."""

# --------------------------------------------------------------------------------------------------------------- record

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
_RUN = fields(
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
"""What the page draws; whatever else a record has is ignored."""


def key(run: Json) -> str:
    """A row of the table: the method, and in a grid its rate."""
    return f"{run['method']}@{run['rate']:g}" if run["rate"] is not None else run["method"]


def read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """All runs of these files and folders, each with the ``file`` it came from; what is no such run raises."""

    def identity(run: Json) -> tuple[Any, ...]:
        return run["dataset"], key(run), run["seed"]

    return distinct(
        paths,
        lambda path, run: check(path, run, "collaborative", _RUN, "recommender run"),
        identity,
        "data, method, rate and seed",
    )
