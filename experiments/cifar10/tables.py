"""The tables of CIFAR-10: measures of each method, the paper's numbers beside ours, and the grid of fixed rates."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.cifar10.record import FIXED_RATE, MEASURES
from experiments.cifar10.summary import show
from experiments.report.page import plus_minus
from experiments.report.records import Json
from experiments.report.tables import Columns, pipes

__all__ = [
    "BASIC", "FOREIGN", "NOTE_ON_PAVPU", "UNCERTAIN", "best_of", "columns", "grid_columns", "markdown", "paper_columns",
    "paper_rows", "rate_columns",
]  # fmt: skip

BASIC = ("accuracy", "nll", "brier", "ece")
UNCERTAIN = ("aurc", "auroc_misclassification", "pavpu_mean_entropy", "pavpu_sweep")
FOREIGN = ("ood_entropy", "ood_mutual_information")

NOTE_ON_PAVPU = (
    "The paper's PAvPU agrees with an entropy taken over a batch instead of over each image, so its column cannot be"
    " compared with ours, which is per image."
)


def markdown(summary: Json) -> str:
    """All measures with a row per method; the paper's numbers beside ours; the grid of fixed rates."""
    rows = [summary["rows"][key] for key in summary["shown"]]
    names: Columns = {"method": lambda row: row["label"], "seeds": lambda row: str(len(row["seeds"]))}
    grid = [row for row in summary["rows"].values() if row["method"] == "mc"]
    parts = [
        f"CIFAR-10, recipe {summary['recipe']}: mean ± standard error over seeds, test set.",
        pipes({**names, **columns(MEASURES), **rate_columns(rows)}, rows),
        f"Beside the paper. {NOTE_ON_PAVPU}",
        pipes({"method": lambda row: row["label"], **paper_columns(summary)}, paper_rows(summary)),
    ]
    if grid:
        mark: Columns = {"chosen": lambda row: "on validation NLL" if row["key"] == summary["chosen"] else ""}
        parts += ["Fixed rates.", pipes({**names, **grid_columns(), **mark}, grid)]
    return "\n\n".join([*parts, *(f"- {sentence}" for sentence in (*summary["findings"], *summary["caveats"]))]) + "\n"


def columns(names: Sequence[str] | Mapping[str, Any], part: str = "measures") -> Columns:
    def cell(name: str) -> Callable[[Json], str]:
        return lambda row: show(row[part][name], name, len(row["seeds"]))

    return {MEASURES[name].label: cell(name) for name in names}


def best_of(rows: Sequence[Json], names: Sequence[str]) -> dict[str, str]:
    """The row with the best mean, by the heading of its column."""
    found = {}
    for name in names:
        there = {row["key"]: row["measures"][name]["mean"] for row in rows if row["measures"][name]}
        if there:
            found[MEASURES[name].label] = (max if MEASURES[name].larger_is_better else min)(
                there, key=lambda key: there[key]
            )
    return found


def rate_columns(rows: Sequence[Json]) -> Columns:
    def cell(layer: str) -> Callable[[Json], str]:
        def shown(row: Json) -> str:
            if row["method"] in FIXED_RATE and row["rate"] is not None:
                return f"{row['rate']:g}, fixed"
            return plus_minus(row["rates"][layer]["mean"]) if layer in row["rates"] else "–"

        return shown

    return {f"mean rate, {layer}": cell(layer) for layer in {layer: None for row in rows for layer in row["rates"]}}


def grid_columns() -> Columns:
    return {"validation NLL": columns(["nll"], "validation")["NLL"], **columns((*BASIC, "pavpu_mean_entropy"))}


def paper_rows(summary: Json) -> list[Json]:
    """Ours that the paper has too; of fixed rates the usual one, where it was run."""
    fixed = [key for key in summary["shown"] if key.startswith("mc@")]
    usual = "mc@0.5" if "mc@0.5" in fixed else (fixed or [None])[0]
    rows = [summary["rows"][key] for key in summary["shown"] if key == usual or not key.startswith("mc@")]
    return [row for row in rows if row["key"] in (usual, row["method"]) and row["method"] in summary["paper"]]


def paper_columns(summary: Json) -> Columns:
    def printed(name: str) -> Callable[[Json], str]:
        return lambda row: "–" if (value := summary["paper"][row["method"]][name]) is None else f"{value:.2f}"

    ours = columns(("accuracy", "pavpu_sweep"))
    return {
        "in the paper": lambda row: summary["paper"][row["method"]]["label"],
        "paper: accuracy, %": printed("accuracy"),
        "ours: accuracy, %": ours["accuracy, %"],
        "paper: mean PAvPU, %": printed("pavpu"),
        "ours: PAvPU over thresholds, %": ours["PAvPU over thresholds, %"],
    }
