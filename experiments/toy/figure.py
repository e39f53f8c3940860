"""The paper's toy figure, drawn from the record alone: eight of its panels, and those of two more estimators and of α₂."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import LogLocator

from experiments.toy.record import PARAMETERS, styled
from lbdrop.io.files import replacing

__all__ = ["draw", "save"]

SYMBOLS = {"alpha_1": r"\alpha_1", "alpha_2": r"\alpha_2"}
KINDS = {"bias": "bias", "std": "standard deviation", "mse": "mean squared error"}

# The letters of the paper's own panels.
LETTERS = {
    ("alpha_1", "bias", "arm"): "a",
    ("alpha_1", "bias", "concrete"): "b",
    ("alpha_1", "std", "arm"): "c",
    ("alpha_1", "std", "concrete"): "d",
    ("alpha_1", "mse", "arm"): "e",
    ("alpha_1", "mse", "concrete"): "f",
}

Surface = Sequence[Sequence[float]]


def draw(record: Mapping[str, Any]) -> Figure:
    """For each parameter a row for each kind of error and a column for each estimator; below, the two traces."""
    figure = Figure(figsize=(10.5, 20.5), layout="constrained")
    parts = figure.add_gridspec(3, 1, height_ratios=[3, 3, 1.9])
    for index, parameter in enumerate(PARAMETERS):
        _surfaces(figure.add_subfigure(parts[index]), record, parameter)
    _traces(figure.add_subfigure(parts[2]), record)
    return figure


def save(record: Mapping[str, Any], path: Path) -> Path:
    """Draw and write; the file is the same for the same record."""
    with replacing(path) as beside:
        draw(record).savefig(beside, dpi=110, format="png", metadata={"Software": None})
    return path


def _surfaces(part: SubFigure, record: Mapping[str, Any], parameter: str) -> None:
    draws = f"{record['settings']['draws']} draws at each pair of keep rates"
    _heading(part, f"Error of one estimate of ${SYMBOLS[parameter]}$'s gradient, {draws}")
    axes = part.subplots(len(KINDS), len(record["surfaces"]), sharex=True, sharey=True)
    for kind, row in zip(KINDS, axes, strict=True):
        values = {name: of[kind][parameter] for name, of in record["surfaces"].items()}
        norm, colours = _norm(list(values.values()), signed=kind == "bias"), "RdBu_r" if kind == "bias" else "viridis"
        for name, panel in zip(values, row, strict=True):
            _surface(panel, record["grid"], values[name], norm, colours)
            _letter(panel, LETTERS.get((parameter, kind, name)))
        bar = part.colorbar(ScalarMappable(norm, colours), ax=list(row), pad=0.01, aspect=14, format="%.3g")
        if kind != "bias":
            bar.locator = LogLocator(subs=(1, 2, 5))  # a row may span less than a decade
        bar.ax.tick_params(labelsize=8)
        bar.ax.minorticks_off()
        row[0].set_ylabel(f"{KINDS[kind]}\n" + r"$\sigma(\alpha_2)$")
    for name, panel in zip(record["surfaces"], axes[0], strict=True):
        panel.set_title(
            styled(name).figure_label,
            fontsize=10,
            color=styled(name).figure_colour,
            weight="bold",
        )
    for panel in axes[-1]:
        panel.set_xlabel(r"$\sigma(\alpha_1)$")


def _surface(panel: Axes, grid: Sequence[float], values: Surface, norm: Normalize, colours: str) -> None:
    half = (grid[1] - grid[0]) / 2
    ends = (grid[0] - half, grid[-1] + half)
    # values[i][j] belongs to the i-th rate of α₁, which runs to the right: imshow wants it the other way round.
    turned = list(zip(*values, strict=True))
    panel.imshow(turned, origin="lower", extent=(*ends, *ends), norm=norm, cmap=colours, aspect="auto")
    panel.set_xticks([0.1, 0.5, 0.9])
    panel.set_yticks([0.1, 0.5, 0.9])
    panel.tick_params(labelsize=8)


def _traces(part: SubFigure, record: Mapping[str, Any]) -> None:
    settings, trace = record["settings"], record["trace"]
    _heading(part, f"Along descent with the exact gradients: mean of {settings['trace_draws']} estimates at each step")
    axes = part.subplots(2, 2, sharex=True, height_ratios=[1.3, 1])
    for parameter, letter, (path, gap) in zip(PARAMETERS, "gh", axes.T, strict=True):
        exact = trace["exact"][parameter]
        for name in reversed(trace["estimates"]):
            means = trace["estimates"][name][parameter]
            line = {
                "color": styled(name).figure_colour,
                "linewidth": 1.1,
                "label": styled(name).figure_label,
            }
            path.plot(means, **line)
            gap.plot([mean - true for mean, true in zip(means, exact, strict=True)], **line)
        path.plot(exact, color="black", linewidth=1.6, linestyle=(0, (4, 3)), label="exact")
        gap.axhline(0, color="black", linewidth=1.2, linestyle=(0, (4, 3)))
        path.set_title(f"({letter})  gradient of ${SYMBOLS[parameter]}$", fontsize=10)
        gap.set_xlabel("step")
        path.tick_params(labelsize=8)
        gap.tick_params(labelsize=8)
    axes[0, 0].set_ylabel("gradient")
    axes[1, 0].set_ylabel("estimate − exact")
    axes[0, 1].legend(fontsize=8, frameon=False, loc="lower right")


def _norm(surfaces: Sequence[Surface], signed: bool) -> Normalize:
    """One colour scale for a row: symmetric around 0, or logarithmic for what is never negative."""
    values = [value for surface in surfaces for line in surface for value in line]
    if signed:
        limit = max(abs(value) for value in values) or 1.0
        return Normalize(-limit, limit)
    positive = [value for value in values if value > 0] or [1.0]
    return LogNorm(min(positive), max(max(positive), min(positive) * 1.01))


def _heading(part: SubFigure, text: str) -> None:
    part.suptitle(text, x=0.01, ha="left", fontsize=12, weight="bold")


def _letter(panel: Axes, letter: str | None) -> None:
    if letter:
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
        panel.text(0.04, 0.95, f"({letter})", transform=panel.transAxes, va="top", fontsize=9, bbox=box)
