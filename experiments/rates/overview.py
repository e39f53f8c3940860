"""The README's figure: rates over training, and what they end at beside a grid. ``python -m experiments.rates.overview``."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments.rates.record import GRID, OURS
from experiments.rates.run import RESULTS, read
from lbdrop.io.files import replacing

__all__ = ["TASK", "Point", "draw", "losses_by_rate"]

TASK = "fashion-3000-mlp"
WHERE = Path(__file__).parent.parent.parent / "docs" / "images" / "rates.png"
LAYERS = {"1": "inputs", "4": "first hidden layer", "7": "second hidden layer"}
Record = Mapping[str, Any]
Point = tuple[float, float]
"""A mean over seeds and its standard error."""


def losses_by_rate(records: Sequence[Record]) -> tuple[dict[float, Point], Point]:
    """Test NLL at each fixed rate, and of the run that learns its rates."""
    losses: dict[str, list[float]] = {}
    for record in records:
        losses.setdefault(record["contestant"], []).append(record["test"]["deterministic"]["nll"])
    fixed = {rate: "none" if rate == 0 else f"fixed-{rate:g}" for rate in (0.0, *GRID)}
    return {rate: _point(losses[name]) for rate, name in fixed.items()}, _point(losses[OURS])


def draw(records: Sequence[Record], path: Path = WHERE) -> Path:
    """Rates over training on the left, the grid and the learned run on the right."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    runs = [record["history"] for record in records if record["contestant"] == OURS]
    epochs = [point["epoch"] for point in runs[0]]
    for layer, name in LAYERS.items():
        rates = [statistics.fmean(run[i]["rates"][layer] for run in runs) for i in range(len(epochs))]
        left.plot(epochs, rates, linewidth=1.8, label=name)
    left.set(title="one run: rates over training", xlabel="epoch", ylabel="dropout rate", ylim=(0, 0.7))
    left.legend(frameon=False, fontsize=8)
    fixed, (mean, error) = losses_by_rate(records)
    means, errors = zip(*fixed.values(), strict=True)
    right.errorbar([*fixed], means, errors, fmt="o-", color="0.45", label="seven fixed rates")
    right.axhspan(mean - error, mean + error, color="C2", alpha=0.25)
    right.axhline(mean, color="C2", linewidth=1.8, label="the one run with learned rates")
    right.set(title="test loss", xlabel="fixed dropout rate", ylabel="negative log likelihood")
    right.legend(frameon=False, fontsize=8)
    for panel in (left, right):
        panel.grid(alpha=0.3)
    with replacing(path) as beside:
        figure.savefig(beside, dpi=130, format="png")
    return path


def _point(losses: Sequence[float]) -> Point:
    return statistics.fmean(losses), statistics.stdev(losses) / len(losses) ** 0.5


if __name__ == "__main__":
    print(draw(read(RESULTS / f"{TASK}.json")))
