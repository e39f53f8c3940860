r"""Which estimator gives the least noise for its time? Variance × time of each on a trained MLP with 1,024 masks.

$$ \mathrm{merit} = \frac{V\,t}{V_\mathrm{ARM}\,t_\mathrm{ARM}}, \qquad
   V = \sum_{k=1}^{1024} \mathrm{Var}\Big[\widehat{\partial_{\alpha_k}} \mathcal{L}\Big] $$

over the masks, for a fixed batch and frozen weights, averaged over the batches of the training set: a few hard examples
carry most of the losses' variance, and ratios differ much from batch to batch (the record has those of every batch). Averaging
m steps divides V by m and multiplies t by m, so the merit compares estimators at equal time whatever number of masks they
draw. Every draw is one full training step through the real :class:`lbdrop.Objective`: the losses, and the backward pass
that serves weights and logits. It is timed, and the estimators take turns in a new order each round; the optimiser's own
step is left out. With ``inverted`` scaling V is that of the whole gradient, autograd's term through 1/keep included.

Run: ``python -m benchmarks.variance`` (about half an hour on one CPU core; ``--quick`` for half a minute).
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.variance_findings import HISTORY, RATIOS, SCALES, claim, findings, overall, summarise
from benchmarks.variance_measures import bias, measure, total_variance
from benchmarks.variance_steps import Settings
from lbdrop.io.records import provenance, write_json

__all__ = ["Settings", "bias", "findings", "main", "run", "summarise", "tables", "total_variance"]

Track = Callable[[Sequence[Any]], Iterable[Any]]
"""Shows how far a loop is."""


def run(settings: Settings, progress: Track = iter) -> dict[str, Any]:
    """The whole record."""
    started = time.perf_counter()
    cells = list(product(settings.seeds, settings.keeps, settings.scales))
    runs = [measure(settings, scale, keep, seed) for seed, keep, scale in progress(cells)]
    return concluded(settings, runs) | {"seconds": time.perf_counter() - started, "provenance": provenance()}


def concluded(settings: Settings, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What follows from the measured runs, the verdict on the default of today included."""
    summary = summarise(runs)
    record: dict[str, Any] = {
        "benchmark": "variance × time of the logit gradient, relative to ARM",
        "history": HISTORY,
        "settings": asdict(settings),
        "summary": summary,
        "overall": overall(summary),
        "claim": claim(runs),
        "runs": runs,
    }
    return {"findings": findings(record), **record}


# ------------------------------------------------------------------------------------------------------------- printing


def tables(record: Mapping[str, Any]) -> Iterable[Table]:
    """One table for each keep rate, with a section for each scaling: V is the variance, all but ms relative to ARM."""
    for keep in record["settings"]["keeps"]:
        table = Table(title=f"keep {keep:g}", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("estimator", no_wrap=True)
        for heading in (
            "V\nper call",
            "V\nper mask",
            "step\nms",
            "step\ntime",
            "V ×\ntime",
            "over\nseeds",
            "bias\n|z|",
        ):
            table.add_column(heading, justify="right", no_wrap=True)
        for each in (each for each in record["summary"] if each["keep"] == keep):
            table.add_section()
            table.add_row(f"[italic]{SCALES[each['scale']]}")
            for name, entry in each["estimators"].items():
                ratios = [f"{entry[key]:.3g}" for key in RATIOS]
                ratios.insert(2, f"{entry['step_ms']:.1f}")
                low, high = entry["merit_range"]
                table.add_row(name, *ratios, f"{low:.2g}–{high:.2g}", f"{max(map(abs, entry['bias_z'])):.1f}")
        yield table


def main(
    out: Annotated[Path, typer.Option(help="Where the record goes.")] = Path("benchmarks/results/variance.json"),
    draws: Annotated[
        int | None, typer.Option(min=2, help="Steps of each estimator on each batch; 32 unless told.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="How long the networks train; 20 unless told.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Half a minute; the numbers mean little.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Conclude anew from the runs that --out holds.")] = False,
) -> None:
    """Measure variance × time of every estimator, print a table for each keep rate, write the record."""
    settings = Settings.quick() if quick else Settings()
    given = {name: value for name, value in {"draws": draws, "epochs": epochs}.items() if value is not None}
    settings = replace(settings, **given)
    torch.set_num_threads(settings.threads)
    console = Console(highlight=False)
    if again:
        old = json.loads(out.read_text())
        record = old | concluded(Settings(**old["settings"]), old["runs"])
    else:
        record = run(settings, partial(track, description="networks", console=console))
    write_json(out, record)
    for table in tables(record):
        console.print(table)
    for sentence in record["findings"]:
        console.print(f"· {sentence}", markup=False)
    console.print(f"JSON: {out.resolve()}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
