"""Balanced rates in the course of training, a line for each layer, from each start."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments.rates.record import FIGURE_LINES
from lbdrop.io.files import replacing

__all__ = ["save"]

Record = Mapping[str, Any]
COLUMNS = 3


def save(records: Mapping[str, Sequence[Record]], path: Path) -> Path | None:
    """One panel a task, the mean over seeds; nothing where no task has balanced rates."""
    shown = {task: [r for r in each if r["contestant"] in FIGURE_LINES] for task, each in records.items()}
    shown = {task: each for task, each in shown.items() if each}
    if not shown:
        return None
    rows = -(-len(shown) // COLUMNS)
    figure = Figure(figsize=(4 * COLUMNS, 2.8 * rows), layout="constrained")
    panels = figure.subplots(rows, COLUMNS, squeeze=False, sharey=True).ravel()
    for panel, (task, runs) in zip(panels, shown.items(), strict=False):
        _panel(panel, task, runs)
    for panel in panels[len(shown) :]:
        panel.set_axis_off()
    figure.suptitle(
        "rates over training: solid as the rule begins them, dotted from .05, dash-dotted from .3, dashed from .7",
        fontsize=10,
    )
    with replacing(path) as beside:
        figure.savefig(beside, dpi=130, format="png")
    return path


def _panel(panel: Any, task: str, runs: Sequence[Record]) -> None:
    layers = list(runs[0]["rates"])
    for contestant, style in FIGURE_LINES.items():
        same = [run["history"] for run in runs if run["contestant"] == contestant]
        if not same:
            continue
        epochs = [point["epoch"] for point in same[0]]
        same = [history for history in same if [point["epoch"] for point in history] == epochs]
        for index, layer in enumerate(layers):
            rates = [sum(h[i]["rates"][layer] for h in same) / len(same) for i in range(len(epochs))]
            label = f"layer {layer.removeprefix('layers.')}" if style == "-" else None
            panel.plot(epochs, rates, style, color=f"C{index % 10}", linewidth=1.4, label=label)
    panel.set(title=task, xlabel="epoch", ylim=(0, 1))
    panel.grid(alpha=0.3)
    if len(layers) <= 4:
        panel.legend(fontsize=7, frameon=False)
