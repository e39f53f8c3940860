"""What runs of setups say: a JSON with every loss, a table, and a figure.

    python -m experiments.regret.table --half verdict runs/regret

A setup's losses are compared seed by seed. Another contestant is *worse* than a fixed .1 where its mean loss is more than 5 %
above, and beyond two standard errors; it *ruins* a setup where it is above 1.25 × the fixed loss by two standard errors. Regret
is the loss above that of the fixed rate which validation chooses, in units of that. A run that diverged has no loss: as the
contestant's it counts as worse and as ruined, as a rival's the setup is left out.
"""

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.rates.docs_tables import ROOT
from experiments.regret.distribution import HALVES, draw
from experiments.regret.run import COUNT, read
from experiments.regret.runs import CONTESTANTS, GRID
from lbdrop.errors import DropoutError
from lbdrop.io.files import replacing
from lbdrop.io.records import provenance, read_json, write_json

__all__ = ["LABELS", "RESULTS", "above", "filled", "losses_of", "main", "rows", "summary", "worse"]

RESULTS = Path(__file__).parent / "results"
README = ROOT / "experiments" / "regret" / "README.md"
WORSE, RUINED, ERRORS = 0.05, 1.25, 2.0
LABELS = {
    "balanced-layer": "balanced noise, a rate per layer", "balanced-model": "balanced noise, one rate",
    "bound": "the paper's bound", "early": "early dropout, .1", "fixed-0": "no dropout", "fixed-0.1": "fixed .1",
    "grid": "grid of seven, chosen on validation", "retrained": "that choice retrained on all examples",
    "fixed-0.1-retrained": "fixed .1 on all examples",
}  # fmt: skip
Losses = Mapping[int, float]
"""The test loss of each seed; infinite where a run has diverged."""


def losses_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[int, float]]]:
    """By setup and contestant; ``grid`` is, for each seed, the fixed rate that validation chooses."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    held_out: dict[tuple[str, int], dict[str, tuple[float, float]]] = {}
    grid = {f"fixed-{rate:g}" for rate in GRID}
    for line in lines:
        test, chosen_by = (math.inf if line[part] is None else float(line[part]) for part in ("test", "validation"))
        found.setdefault(line["setup"], {}).setdefault(line["contestant"], {})[line["seed"]] = test
        if line["contestant"] in grid:
            held_out.setdefault((line["setup"], line["seed"]), {})[line["contestant"]] = chosen_by, test
    for (setup, seed), those in held_out.items():
        if set(those) == grid:
            found[setup].setdefault("grid", {})[seed] = min(those.values())[1]
    return found


def above(ours: Losses, theirs: Losses) -> float | None:
    """How far the mean loss is above another's, in units of that; ``None`` where that cannot be said."""
    seeds = ours.keys() & theirs.keys()
    if len(seeds) < 2 or not all(math.isfinite(theirs[seed]) for seed in seeds):
        return None
    return statistics.fmean(ours[s] for s in seeds) / statistics.fmean(theirs[s] for s in seeds) - 1


def surely_above(ours: Losses, theirs: Losses, factor: float) -> bool:
    """Whether the mean loss is above ``factor`` times another's by two standard errors, seed by seed."""
    differences = [ours[seed] - factor * theirs[seed] for seed in ours.keys() & theirs.keys()]
    if not all(map(math.isfinite, differences)):
        return True
    return statistics.fmean(differences) > ERRORS * statistics.stdev(differences) / len(differences) ** 0.5


def worse(ours: Losses, theirs: Losses) -> bool:
    found = above(ours, theirs)
    return found is not None and found > WORSE and surely_above(ours, theirs, 1.0)


def summary(losses: Mapping[str, Mapping[str, Losses]], baseline: str = "fixed-0.1") -> dict[str, dict[str, Any]]:
    """Of each contestant over all setups that have it, the baseline and the whole grid."""
    found: dict[str, dict[str, Any]] = {}
    for name in LABELS:
        there = {s: each for s, each in losses.items() if above(each.get(name, {}), each.get(baseline, {})) is not None}
        if not there:
            continue
        pairs = {s: (each[name], each[baseline]) for s, each in there.items()}
        regrets = [r for s, each in there.items() if (r := above(each[name], each.get("grid", {}))) is not None]
        finite = [r for r in regrets if math.isfinite(r)]
        found[name] = {
            "setups": len(there),
            "seeds": statistics.fmean(len(ours) for ours, _ in pairs.values()),
            "worse": sorted(s for s, pair in pairs.items() if worse(*pair)),
            "ruined": sorted(s for s, (ours, theirs) in pairs.items() if surely_above(ours, theirs, RUINED)),
            "better": sorted(s for s, (ours, theirs) in pairs.items() if worse(theirs, ours)),
            "diverged": len(regrets) - len(finite),
            "regret": statistics.fmean(finite) if finite else None,
            "regret standard error": statistics.stdev(finite) / len(finite) ** 0.5 if len(finite) > 1 else None,
            "regret at most 1": statistics.fmean(min(r, 1.0) for r in regrets) if regrets else None,
            "regret median": statistics.median(finite) if finite else None,
        }  # fmt: skip
    return found


def rows(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The table, as Markdown."""
    regrets = "mean regret beside the grid | the same, a setup at most 100 % | median"
    yield f"| contestant | setups | worse than fixed .1 | better | 1.25 × its loss | {regrets} |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, row in found.items():
        share = f"{len(row['worse'])} ({100 * len(row['worse']) / row['setups']:.0f} %)"
        mean = (
            "–"
            if row["regret standard error"] is None
            else f"{_percent(row['regret'])} ± {100 * row['regret standard error']:.1f}"
        )
        least, median = (
            "–" if row["regret"] is None else _percent(row[n]) for n in ("regret at most 1", "regret median")
        )
        lost = f" ({row['diverged']} diverged)" if row["diverged"] else ""
        yield (
            f"| {LABELS[name]} | {row['setups']} | {share} | {len(row['better'])} | {len(row['ruined'])} | {mean} %{lost} |"
            f" {least} % | {median} % |"
        )


def _percent(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "−")


def filled(text: str, half: str, whole: Mapping[str, Any]) -> str:
    """A page with the table between its two comments."""
    before, begin, rest = text.partition(f"<!-- {half} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not end:
        raise DropoutError(f"page: want <!-- {half} --> and <!-- end --> around a table, got no such place")
    return "\n".join([before + begin, *rows(whole["summary"]), "", end + after])


def draw_figure(losses: Mapping[str, Mapping[str, Losses]], path: Path, baseline: str = "fixed-0.1") -> Path:
    """Each contestant's loss beside a fixed .1, setups from its best to its worst."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    panel = figure.subplots()
    for name in ("fixed-0", "early", "bound", "grid", "balanced-model", "balanced-layer"):
        found = (above(each.get(name, {}), each.get(baseline, {})) for each in losses.values())
        values = sorted(100 * min(value, 10.0) for value in found if value is not None)
        if values:
            share = [(i + 0.5) / len(values) for i in range(len(values))]
            panel.plot(share, values, label=LABELS[name], linewidth=2.2 if name.startswith("balanced") else 1.2)
    panel.axhline(0, color="black", linewidth=0.6)
    panel.set_yscale("symlog", linthresh=10)
    panel.set(xlabel="share of setups, from the best to the worst", ylabel="test loss beside fixed .1, %")
    panel.legend(fontsize=8, frameon=False)
    panel.grid(alpha=0.3)
    with replacing(path) as beside:
        figure.savefig(beside, dpi=120, format="png")
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*", help="files and folders of lines; without any, the JSON is read")
    parser.add_argument("--half", choices=[*HALVES], required=True)
    given = parser.parse_args(arguments)
    path = RESULTS / f"{given.half}.json"
    if given.runs:
        lines, known = read(given.runs), {setup.name for setup in draw(given.half, COUNT)}
        runs = [line for line in lines if line.get("setup") in known and line["contestant"] in CONTESTANTS]
        losses = losses_of(runs)
        content = {
            "experiment": "regret", "half": given.half, "provenance": provenance("cpu"),
            "runs": [line["provenance"] for line in lines if "provenance" in line],
            "summary": summary(losses), "beside fixed .1 on all examples": summary(losses, "fixed-0.1-retrained"),
            # JSON has no infinity.
            "losses": {setup: {name: {str(seed): loss if math.isfinite(loss) else None for seed, loss in seeds.items()}
                               for name, seeds in each.items()} for setup, each in sorted(losses.items())},
        }  # fmt: skip
        RESULTS.mkdir(exist_ok=True)
        write_json(path, content)
        draw_figure(losses, RESULTS / f"{given.half}.png")
    whole = read_json(path)
    text = README.read_text(encoding="utf-8")
    if f"<!-- {given.half} -->" in text:
        with replacing(README) as beside:
            beside.write_text(filled(text, given.half, whole), encoding="utf-8")
    print("\n".join(rows(whole["summary"])))


if __name__ == "__main__":
    main()
