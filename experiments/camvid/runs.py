"""Runs that leave files: a JSON and maps for each row of the table, and states from which an interrupted run goes on."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.camvid import recipes
from experiments.camvid.recipes import Settings, Start
from experiments.camvid.record import METHODS
from experiments.vision.camvid import CamVid
from lbdrop.errors import DropoutError
from lbdrop.io.files import replacing
from lbdrop.io.records import write_json

__all__ = ["Starts", "once", "summary"]


class Starts:
    """The common start of each seed: from memory, from the folder ``states``, or trained now."""

    # Of all settings, those that decide it.
    DECIDE = (
        "seed",
        "depth",
        "plan",
        "rate",
        "crop",
        "crop_lr",
        "crop_kernel_lr",
        "crop_scale",
        "weight_decay",
        "kernel_decay",
        "crop_optimizer",
    )

    def __init__(self, data: CamVid, states: Path | None, *, recorded: bool | None = None, progress: bool = False):
        self.data, self.states, self.recorded, self.progress = data, states, recorded, progress
        self.known: dict[str, Start] = {}

    def of(self, settings: Settings) -> Start | None:
        """The start of these settings; none where the recipe has none."""
        start = None
        for count in range(1, len(settings.rounds) + 1):
            made = repr({name: getattr(settings, name) for name in self.DECIDE} | {"rounds": settings.rounds[:count]})
            if made not in self.known:
                self.known[made] = self._round(settings, count, made, start)
            start = self.known[made]
        return start

    def _round(self, settings: Settings, count: int, made: str, before: Start | None) -> Start:
        name = f"{settings.recipe}-start{count}-seed{settings.seed}"
        file = self.states / f"{name}.pt" if self.states else None
        if file is not None and file.exists():
            kept = torch.load(file, map_location="cpu", weights_only=True)
            if kept["made"] != made:
                raise DropoutError(
                    f"{file}: want a start with {made}, got one with {kept['made']}; remove it, or use another --out"
                )
            return Start(*kept["start"])
        at = self.states / name if self.states else None
        start = recipes.common_start(
            settings, self.data, before, checkpoints=at, recorded=self.recorded, progress=self.progress
        )
        if file is not None:
            with replacing(file) as beside:
                torch.save({"made": made, "start": tuple(start)}, beside)
        return start


def once(settings: Settings, starts: Starts, folder: Path) -> list[dict[str, Any]] | None:
    """Train and measure, unless every row is in ``folder`` already."""
    files = {
        row.name: folder / f"{settings.recipe}-{row.name}-seed{settings.seed}" for row in METHODS[settings.method].rows
    }
    if all(file.with_suffix(".json").exists() for file in files.values()):
        return None
    at = starts.states / settings.name if starts.states else None
    records, maps = recipes.run(
        settings, starts.data, starts.of(settings), checkpoints=at, recorded=starts.recorded, progress=starts.progress
    )
    for record in records:
        file, arrays = files[record["method"]], maps[record["method"]]
        kept: dict[str, Any] = {name: each.numpy() for name, each in arrays.items()}
        with replacing(file.with_suffix(".npz")) as beside, beside.open("wb") as out:
            np.savez_compressed(out, **kept)
        write_json(file.with_suffix(".json"), record)  # last: a run is there when its record is
    return records


def summary(record: dict[str, Any]) -> str:
    """One line about a run."""
    test, rates = record["test"], [layer["mean"] for layer in record["rates"].values()]
    return (
        f"{record['label']}: test accuracy {test['accuracy']:.2%}, mean IoU {test['mean_iou']:.2%} (validation"
        f" {record['validation']['mean_iou']:.2%}), PAvPU {test['pavpu_mean_entropy']:.2%} at mean entropy and"
        f" {test['pavpu_sweep']:.2%} over the sweep, ECE {test['ece']:.4f}, rates {min(rates):.2f}–{max(rates):.2f},"
        f" {record['seconds']['train']:.0f} s"
    )
