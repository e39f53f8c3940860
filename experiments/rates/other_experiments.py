"""Tasks with a table of their own, CIFAR-10 and the recommenders, beside the grid that was run there: the same verdicts.

Their runs are recorded by their own experiments; nothing is trained here. Seeds count that every fixed rate of the grid has; of
runs of several lengths those count that have the larger grid.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.cifar10.record import method_of, starting_rate
from experiments.collaborative.record import GRIDS, MEASURE
from experiments.rates.verdicts import in_words, paired, plus_minus, spread
from lbdrop.io.records import read_json

__all__ = ["FAMILIES", "Family", "lines", "summarise"]

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Family:
    """Runs of one network on one data set, in another experiment's results."""

    name: str
    experiment: str
    files: str
    """A pattern of file names."""
    measure: str
    better: int
    """1 where more of the measure is better, −1 where less is."""
    value: Callable[[Record, str], float]
    """The measure of a run on a part, "validation" or "test"."""
    fixed: Callable[[Record], float | None]
    """The rate of a run of the grid; ``None`` for others."""
    learned: Callable[[Record], str | None]
    """What a run with learned rates is called; ``None`` for runs that do not belong here."""
    rates: Callable[[Record], list[float]]

    def epochs(self, record: Record) -> int | None:
        """How long a run was; ``None`` for what is not trained in epochs."""
        return record["settings"].get("epochs")


def _cifar10() -> Family:
    def learned(record: Record) -> str | None:
        if not method_of(record).learns:
            return None
        start = starting_rate(record)
        return record["label"] + ("" if start is None else f", from {start:g}")

    return Family(
        "cifar10-vgg19", "cifar10", "fast-*.json", "nll", -1,
        lambda r, part: r[part]["nll"],
        lambda r: r["settings"]["rate"] if r["method"] == "mc" else None,
        learned,
        lambda r: [layer["mean"] for layer in r["rates"].values()],
    )  # fmt: skip


def _recommender(data: str, encoder: str, row: str) -> Family:
    found = GRIDS[row]

    def fixed(record: Record) -> float | None:
        rate = 0.0 if record["settings"].get("dropout") == "none" else record["rate"]
        return rate if record["method"] in (row, found.rate_zero) and record["dataset"] == data else None

    return Family(
        f"recommender-{data}-{encoder}", "collaborative", f"{data}-*.json", MEASURE, 1,
        lambda r, part: r[part]["mean"][MEASURE],
        fixed,
        lambda r: r["label"] if r["method"] in found.learned and r["dataset"] == data else None,
        lambda r: [1 - r["rates"]["keep"]] if isinstance(r["rates"]["keep"], float) else [],
    )  # fmt: skip


FAMILIES = (
    _cifar10(),
    *(
        family
        for data in ("ml-1m", "netflix-sample", "netflix")
        for family in (
            _recommender(data, "paper", "vae-drop"),
            _recommender(data, "dense", "vae-dense-drop"),
        )
    ),
)


def summarise(experiments: Path) -> dict[str, Any]:
    """Every family that has a grid, from the folder of all experiments."""
    found = {}
    for family in FAMILIES:
        files = sorted((experiments / family.experiment / "results").glob(family.files))
        if summary := _summary(family, [read_json(file) for file in files]):
            found[family.name] = summary
    return found


def _summary(family: Family, records: Sequence[Record]) -> dict[str, Any] | None:
    lengths = Counter(family.epochs(record) for record in records if family.fixed(record) is not None)
    if not lengths:
        return None
    ((epochs, _),) = lengths.most_common(1)
    grid: dict[float, dict[int, Record]] = {}
    others: dict[str, dict[int, Record]] = {}
    for record in (each for each in records if family.epochs(each) == epochs):
        if (rate := family.fixed(record)) is not None:
            grid.setdefault(rate, {})[record["seed"]] = record
        elif (label := family.learned(record)) is not None:
            others.setdefault(label, {})[record["seed"]] = record
    seeds = sorted(set.intersection(*map(set, grid.values())))
    if not seeds or not others:
        return None
    chosen = {
        seed: max(grid, key=lambda rate, seed=seed: family.better * family.value(grid[rate][seed], "validation"))
        for seed in seeds
    }
    base = {seed: family.value(grid[rate][seed], "test") for seed, rate in chosen.items()}
    contestants = {}
    for label, runs in others.items():
        common = [seed for seed in seeds if seed in runs]
        ours = {seed: family.value(runs[seed], "test") for seed in common}
        rates = [family.rates(runs[seed]) for seed in common]
        contestants[label] = {
            "runs": len(common),
            **spread("test", list(ours.values())),
            # Losses: what is lower is better.
            "against_grid": paired(*([-family.better * value[s] for s in common] for value in (ours, base))),
            "rates": [statistics.fmean(each) for each in zip(*rates, strict=True)],
        }
    return {
        "measure": family.measure,
        "seeds": seeds,
        "epochs": epochs,
        "grid": sorted(grid),
        "chosen": {"rates": list(chosen.values()), **spread("test", list(base.values()))},
        "contestants": contestants,
    }


def lines(whole: Mapping[str, Any]) -> Iterable[str]:
    """The families as a page's last tables."""
    for name, found in whole.items():
        rates = ", ".join(f"{rate:g}" for rate in found["chosen"]["rates"])
        grid = ", ".join(f"{rate:g}" for rate in found["grid"])
        yield f"\n## {name}, from its own experiment\n"
        best = plus_minus(found["chosen"], "test")
        yield f"- {found['epochs']} epochs. Grid of {grid}: {best}, rates chosen by seed {rates}."
        yield f"\n| contestant | seeds | test {found['measure']} | Δ loss | rates |"
        yield "|---|---|---|---|---|"
        for label, row in found["contestants"].items():
            yield (
                f"| {label} | {row['runs']} | {plus_minus(row, 'test')} | {in_words(row['against_grid'])} |"
                f" {' '.join(f'{rate:.2f}' for rate in row['rates']) or '–'} |"
            )
