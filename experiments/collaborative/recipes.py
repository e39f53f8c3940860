"""The paper's collaborative filtering table, every row on the same users: one run is one function, one record, one JSON.

Validation users choose the epoch, the rivals' settings and whether masks are averaged; test users are used once.

Boluki et al., Learnable Bernoulli Dropout for Bayesian Deep Learning, AISTATS 2020, table 3; the protocol is that of Liang
et al., Variational Autoencoders for Collaborative Filtering, WWW 2018.
"""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.collaborative import examples
from experiments.collaborative.elastic_net import SLIMAtOnce
from experiments.collaborative.protocol_text import protocol
from experiments.collaborative.record import (
    DATA,
    GRID_RATES,
    GRIDS,
    LAST_SELF_TUNING,
    MEASURE,
    RETIRED,
    RIVALS,
    ROWS,
    USUAL_RATE,
)
from lbdrop.errors import DropoutError
from lbdrop.io.records import provenance
from lbdrop.recommend.data.rows import Rows
from lbdrop.recommend.linear.methods import LINEAR, Linear
from lbdrop.recommend.model import settings as models
from lbdrop.recommend.model.settings import Settings
from lbdrop.recommend.model.vae import VAE
from lbdrop.recommend.train.evaluate import HeldOutRows, Report, evaluate
from lbdrop.recommend.train.fit import fit

__all__ = ["Run", "contestants", "grid", "run", "settings_of"]


@dataclass(frozen=True)
class Run:
    """One cell of the table: what to train on which data."""

    dataset: str
    method: str
    seed: int = 0
    rate: float | None = None
    """The fixed rate, in rows that form a grid."""

    def __post_init__(self):
        if self.dataset not in DATA:
            raise DropoutError(f"data set: want one of {', '.join(DATA)}, got {self.dataset!r}")
        if self.method not in ROWS:
            raise DropoutError(f"method: want one of {', '.join(ROWS)}, got {self.method!r}")
        if self.method in GRIDS and self.rate is None:
            object.__setattr__(self, "rate", USUAL_RATE)
        if self.method in RETIRED:
            raise DropoutError(
                f"method: want one that can be run, got {self.method!r}, whose rule the package no longer has; its records"
                f" stay; to run it again, check out {LAST_SELF_TUNING}"
            )
        if self.rate is not None and self.method not in GRIDS:
            raise DropoutError(f"rate: want a method with a grid ({', '.join(GRIDS)}), got {self.method!r}")
        if self.rate is not None and not 0 <= self.rate < 1:
            raise DropoutError(f"rate: want 0 or more and less than 1, got {self.rate}")

    @property
    def label(self) -> str:
        """What its row of the table is called."""
        return ROWS[self.method].label + (f", rate {self.rate:g}" if self.rate is not None else "")

    @property
    def name(self) -> str:
        """The file the run is kept in."""
        rate = f"-{self.rate:g}" if self.rate is not None else ""
        return f"{self.dataset}-{self.method}{rate}-seed{self.seed}"


def contestants(dataset: str, seeds: int = 1) -> Iterator[Run]:
    """The whole table, seed by seed: every row, and both grids. Rivals without a network run once."""
    for seed in range(seeds):
        for method in ROWS:
            if method not in (*GRIDS, *RETIRED) and (seed == 0 or method not in RIVALS):
                yield Run(dataset, method, seed)
        for method in GRIDS:
            yield from (each for each in grid(dataset, method, seed) if each.method != "vae")


def grid(dataset: str, encoder: str = "vae-drop", seed: int = 0) -> Iterator[Run]:
    """Fixed rates on one encoder; with the paper's, rate 0 is its row ``vae``."""
    if encoder not in GRIDS:
        raise DropoutError(f"grid: want one of {', '.join(GRIDS)}, got {encoder!r}")
    for rate in GRID_RATES:
        plain = rate == 0 and encoder == "vae-drop"
        yield Run(dataset, "vae", seed) if plain else Run(dataset, encoder, seed, rate)


def settings_of(one: Run, changes: Mapping[str, Any] | None = None) -> Settings:
    """What a network of the table is made of and how it is trained: the method's settings on the data set's schedule.

    Args:
        one: the run.
        changes: settings to replace. Other ``epochs`` or another ``batch`` stretch the annealing with them.
    """
    schedule, changes = DATA[one.dataset], dict(changes or {})
    base = models.method("vae-drop" if one.method in GRIDS else one.method)
    if one.method == "vae-dense-drop":
        base = replace(base, method=one.method, **models.DENSE)
    if one.rate is not None:
        base = replace(base, rate=one.rate) if one.rate > 0 else replace(base, dropout="none")
    if base.encoder == "dense" and one.method != "recvae":
        base = replace(base, **schedule.dense)
    if base.dropout == "learned":
        base = replace(base, **schedule.bound)
    epochs, batch = changes.pop("epochs", schedule.epochs), changes.pop("batch", schedule.batch)
    stretch = epochs / schedule.epochs * schedule.batch / batch
    if base.alternate:  # an epoch is several passes: our hundred are its published fifty
        epochs = max(epochs // 2, 1)
    steps = max(round(schedule.anneal_steps * stretch), 1)
    base = replace(base, epochs=epochs, batch=batch, anneal_steps=steps)
    if unknown := set(changes) - {field.name for field in fields(Settings)}:
        raise DropoutError(f"settings: no {', '.join(sorted(unknown))}; see lbdrop.recommend.model.settings.Settings")
    return replace(base, **changes)


def run(
    data_name: str,
    method: str,
    seed: int,
    split: Any,
    *,
    rate: float | None = None,
    device: str | torch.device | None = None,
    changes: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    checkpoints: Path | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Train one model, choose on validation users, measure on test users, and return everything as one record.

    Args:
        data_name: a key of :data:`DATA`.
        method: a key of :data:`ROWS`.
        seed: draws weights, the order of users, masks and noise.
        split: train, validation and test as :func:`lbdrop.recommend.split_users` gives them; of ``train`` only ``rows``
            and, for the examples, ``items`` are read, of the others ``fold_in`` and ``held_out``.
        rate: the fixed rate, in a grid.
        device: a GPU if there is one.
        changes: settings to replace: of the network, or of a rival, whose grid then shrinks to what is left.
        training: further arguments of :func:`lbdrop.recommend.train.fit.fit`, such as ``validate_every`` or ``patience``.
        checkpoints: folder for the state after each epoch; a run found there is taken up where it stopped.
        progress: show a bar.
    """
    one = Run(data_name, method, seed, rate)
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)
    rows = split.train.rows
    likes = torch.from_numpy(np.bincount(rows.indices, minlength=rows.shape[1]))
    world = World(rows, likes, HeldOutRows.on(split.validation, place), HeldOutRows.on(split.test, place), place)
    if method in RIVALS:
        scorer, made = _rival(one, world, changes or {})
    else:
        s = settings_of(one, changes)
        scorer, made = _network(one, s, world, dict(training or {}), checkpoints, progress)
    start = time.perf_counter()
    test = evaluate(scorer, world.test, likes=likes, device=place)
    made["seconds"]["evaluate"] = time.perf_counter() - start
    return {
        "experiment": "collaborative",
        "name": one.name,
        "dataset": data_name,
        "method": method,
        "label": one.label,
        "seed": seed,
        "rate": one.rate,
        "settings": made["settings"],
        "protocol": protocol(data_name, world.counts(), made, DATA[data_name], MEASURE),
        "provenance": provenance(),
        "data": world.counts(),
        **made,
        "validation": made["validation"].record(),
        "test": test.record(),
        "examples": examples.examples(scorer, world.test, likes, getattr(split.train, "items", None)),
        "peak_bytes": torch.cuda.max_memory_allocated(place) if place.type == "cuda" else None,
    }


class World(NamedTuple):
    """What every method is given."""

    train: Any
    likes: Tensor
    validation: HeldOutRows
    test: HeldOutRows
    device: torch.device

    def counts(self) -> dict[str, int]:
        users, items = self.train.shape
        held = {"validation": self.validation, "test": self.test}
        return {"train_users": users, "items": items, "train_likes": int(self.train.nnz)} | {
            f"{name}_{what}": value
            for name, part in held.items()
            for what, value in (("users", part.fold_in.users), ("fold_in", part.fold_in.entries),
                                ("held_out", part.held_out.entries))
        }  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- the methods


def _network(
    one: Run, s: Settings, world: World, training: dict[str, Any], checkpoints: Path | None, progress: bool
) -> tuple[Any, dict[str, Any]]:
    torch.manual_seed(one.seed)
    model = VAE(world.train.shape[1], s, users=world.train.shape[0])
    train = Rows.from_csr(world.train, world.device)
    start = time.perf_counter()
    history = fit(
        model, train, world.validation, s, device=world.device, seed=one.seed, checkpoints=checkpoints,
        progress=progress, **training,
    )  # fmt: skip
    seconds = time.perf_counter() - start

    def scorer(masks: int) -> Any:
        generator = torch.Generator(world.device).manual_seed(one.seed) if masks else None
        return partial(model.scores, samples=masks, generator=generator)

    found = {
        masks: evaluate(scorer(masks), world.validation, likes=world.likes, device=world.device)
        for masks in sorted({0, s.samples})
    }
    masks = max(found, key=lambda each: found[each].mean[MEASURE])
    best = history.best_epoch
    model.eval()
    return scorer(masks), {
        "settings": asdict(s),
        "training": training,
        "validation": found[masks],
        "masks": {"at_test": masks, "chosen_on": "validation", "validation": _per_masks(found)},
        "choice": None,
        "history": [_epoch(entry) for entry in history.epochs],
        "best": None if best is None else {"epoch": best["epoch"], "beta": best["beta"], "keep": best["keep"]},
        "stopped_early": history.stopped,
        "rates": examples.rates(model.keep.cpu(), world.likes) if s.dropout != "none" else None,
        "seconds": {
            "train": seconds,
            "per_epoch": statistics.median(entry["seconds"] for entry in history.epochs) if history.epochs else None,
        },
    }


def _rival(one: Run, world: World, changes: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Fit every setting of the grid, keep the one that validation users like best."""
    tried: list[dict[str, Any]] = []
    best: tuple[Linear, Report] | None = None
    start, fitting = time.perf_counter(), 0.0
    for options in _different(ROWS[one.method].tried, changes):
        begin = time.perf_counter()
        seeded = {"seed": one.seed} if one.method in ("wmf", "ials") else {}
        at_once = one.method == "slim" and world.device.type == "cuda"
        model = (SLIMAtOnce if at_once else LINEAR[one.method])(**options, **seeded, device=world.device).fit(
            world.train
        )
        fitting = time.perf_counter() - begin
        report = evaluate(model, world.validation, likes=world.likes, device=world.device)
        tried.append({"settings": options, MEASURE: report.mean[MEASURE], "seconds": fitting})
        if best is None or report.mean[MEASURE] > best[1].mean[MEASURE]:
            best = model, report
        del model  # two item × item matrices at once are enough
    assert best is not None
    chosen = max(tried, key=lambda each: each[MEASURE])
    return best[0], {
        "settings": {"method": one.method, **chosen["settings"]},
        "training": {},
        "validation": best[1],
        "masks": None,
        "choice": {"by": f"validation {MEASURE}", "tried": tried, "chosen": chosen["settings"]},
        "history": [],
        "best": None,
        "stopped_early": False,
        "rates": None,
        "seconds": {"train": time.perf_counter() - start, "per_epoch": None, "fit": chosen["seconds"]},
    }


def _different(options: Sequence[Mapping[str, Any]], changes: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for each in ({**option, **changes} for option in options):
        found += [] if each in found else [each]
    return found


def _epoch(entry: Mapping[str, Any]) -> dict[str, Any]:
    validation = entry["validation"]
    names = ("epoch", "loss", "nll", "kl", "mask_kl", "beta", "keep", "seconds")
    return {name: entry[name] for name in names} | {MEASURE: None if validation is None else validation[MEASURE]}


def _per_masks(found: Mapping[int, Report]) -> dict[str, Any]:
    records = {str(masks): report.record() for masks, report in found.items()}
    return {masks: {name: record[name] for name in ("mean", "standard_error")} for masks, record in records.items()}
