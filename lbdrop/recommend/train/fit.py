"""Training a recommender: epochs, validation after each, the best weights, and a run that can resume.

NDCG@100 on held-out users decides which weights are best and when to stop. The record of the best epoch also has the weight β
of the KL. States are saved by :mod:`lbdrop.recommend.train.checkpoints`, epochs run by :mod:`lbdrop.recommend.train.loop`.

Liang, Krishnan, Hoffman and Jebara, Variational Autoencoders for Collaborative Filtering, WWW 2018.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lbdrop.errors import DropoutError
from lbdrop.guards import processes
from lbdrop.recommend.data.rows import Resident, Rows
from lbdrop.recommend.data.splits import HeldOut
from lbdrop.recommend.model.settings import Settings
from lbdrop.recommend.model.vae import VAE
from lbdrop.recommend.train import checkpoints as states
from lbdrop.recommend.train.evaluate import HeldOutRows, evaluate
from lbdrop.recommend.train.loop import Loop, launch

__all__ = ["History", "Interrupted", "fit"]

VALIDATION_MEASURE = "ndcg@100"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during training; the message says what was saved and how to continue."""


@dataclass
class History:
    """The records of the epochs."""

    epochs: list[dict[str, Any]] = field(default_factory=list)
    """For each: number from 1, seconds, loss and its parts, beta, mean keep rate, measures on validation users."""
    best: int | None = None
    """The number of the epoch with the best validation NDCG@100, whose weights the model has; None without validation."""
    stopped: bool = False
    """Whether patience ran out."""

    @property
    def best_epoch(self) -> dict[str, Any] | None:
        """The record of the best epoch: its ``beta`` is the KL's weight to report."""
        return None if self.best is None else self.epochs[self.best - 1]

    @property
    def best_measure(self) -> float:
        """The best validation NDCG@100; −∞ before the first validation."""
        return -math.inf if self.best_epoch is None else self.best_epoch["validation"][VALIDATION_MEASURE]


def fit(
    model: VAE,
    train: Any,
    validation: HeldOut | HeldOutRows | None = None,
    settings: Settings | None = None,
    *,
    device: torch.device | str | None = None,
    seed: int = 0,
    checkpoints: Path | None = None,
    checkpoint_every: int = 1,
    identity: dict[str, Any] | None = None,
    validate_every: int = 1,
    validation_samples: int = 0,
    patience: int | None = None,
    precision: Any = None,
    resident: Resident = "auto",
    progress: bool = True,
) -> History:
    """Train ``model`` in place, leave it with its best weights, and return the records of the epochs.

    Args:
        model: the model; it stays on the device of training.
        train: training rows, a scipy matrix (users, items), or :class:`Rows` on the device already.
        validation: held-out users; without them the last weights are kept.
        settings: the default is the model's; ``epochs``, ``batch`` and the learning rates are read here.
        device: the default is a GPU, if there is one.
        seed: draws the order of users, masks and noise; the same seed gives the same run, bit for bit on a CPU.
        checkpoints: folder for the state after each epoch, of one run at a time; one found there continues where it stopped.
        checkpoint_every: epochs between states.
        identity: more that must be the same to continue a run, such as a fingerprint of the data.
        validate_every: epochs between validations; the last one is always validated.
        validation_samples: masks to average in validation; 0 runs the model once, without masks.
        patience: stop after so many validations without a better one; ``None`` never.
        precision: Fabric's; the default is bf16-mixed on a GPU and 32-true elsewhere.
        resident: where a matrix of training rows is: "device", "host" (batches are copied when needed), or "auto": the
            host if the device has too little memory.
        progress: show a bar.
    """
    with states.opened(checkpoints) as saved:
        s = settings or model.settings
        fabric = launch(device, precision, uneven=bool(s.alternate))
        model.to(fabric.device)
        rows = train if isinstance(train, Rows) else Rows.from_csr(train, fabric.device, resident=resident)
        held_out = HeldOutRows.on(validation, fabric.device) if isinstance(validation, HeldOut) else validation
        _check(model, rows, held_out, s, validate_every, checkpoints)
        run = Loop(model, rows, s, fabric, seed=seed, held_out=None if held_out is None else held_out.fold_in)
        history, best = History(), None
        data = {"users": rows.users, "items": rows.items, "entries": rows.entries}
        run_settings = {k: v for k, v in asdict(s).items() if k != "epochs"}
        identity = {"settings": run_settings, "seed": seed, "data": data, **(identity or {})}
        if checkpoints is not None and saved is not None:
            best = states.load(checkpoints, saved, model, run.optimizer, identity)
            history, run.step = History(saved["epochs"], saved["best"], saved["stopped"]), saved["step"]
        if checkpoints is not None:
            processes.check_agreement(len(history.epochs), checkpoints, fabric.device)
        with _bar(s.epochs, len(history.epochs), progress and fabric.is_global_zero) as advance:
            try:
                while len(history.epochs) < s.epochs and not history.stopped:
                    number = len(history.epochs) + 1
                    entry = run.epoch(number, partial(advance, history, number))
                    if held_out is not None and (number % validate_every == 0 or number == s.epochs):
                        entry["validation"], entry["validation_seconds"] = _validate(
                            model, held_out, validation_samples, seed
                        )
                    history.epochs.append(entry)
                    if (
                        entry["validation"] is not None
                        and entry["validation"][VALIDATION_MEASURE] > history.best_measure
                    ):
                        history.best = number
                        best = {name: value.detach().clone() for name, value in model.state_dict().items()}
                    advance(history, number, 1.0)
                    history.stopped = patience is not None and _validations_since_best(history) >= patience
                    due = number % checkpoint_every == 0 or number == s.epochs or history.stopped
                    if checkpoints is not None and due and fabric.is_global_zero:
                        record = asdict(history) | {"step": run.step, "identity": identity}
                        kept = None if history.best is None or best is None else (history.best, best)
                        states.save(checkpoints, number, model, run.optimizer, record, kept)
            except KeyboardInterrupt:
                raise Interrupted(_interrupted_message(history, checkpoints)) from None
        if best is not None:
            model.load_state_dict(best)
        fabric.barrier()  # no process continues before the state is written
        return history


def _validate(model: VAE, held_out: HeldOutRows, samples: int, seed: int) -> tuple[dict[str, float], float]:
    start = time.perf_counter()
    generator = torch.Generator(held_out.fold_in.device).manual_seed(seed) if samples else None
    report = evaluate(partial(model.scores, samples=samples, generator=generator), held_out, shared=True)
    return report.mean, time.perf_counter() - start


def _validations_since_best(history: History) -> int:
    """Validations since the best one."""
    return sum(e["validation"] is not None for e in history.epochs[history.best or 0 :])


def _check(
    model: VAE, rows: Rows, held_out: HeldOutRows | None, s: Settings, validate_every: int, checkpoints: Path | None
) -> None:
    if not rows.users or not rows.entries:
        raise DropoutError(f"train: want users with items, got {rows.users} users and {rows.entries} interactions")
    if rows.items != model.items:
        raise DropoutError(f"train: want the model's {model.items} items, got {rows.items} columns")
    if held_out is not None and held_out.fold_in.items != model.items:
        raise DropoutError(
            f"validation: want the model's {model.items} items, got {held_out.fold_in.items} columns; split_users gives all"
            " parts the same columns"
        )
    if checkpoints is not None and s.rates == "balanced":
        raise DropoutError("checkpoints: want rates='bound', whose runs can be resumed, got 'balanced'; leave them out")
    if validate_every < 1:
        raise DropoutError(f"validate_every: want at least 1, got {validate_every}")


def _interrupted_message(history: History, checkpoints: Path | None) -> str:
    done = len(history.epochs)
    if checkpoints is None:
        next_step = "pass checkpoints=<folder> to fit to be able to go on"
        return f"stopped in epoch {done + 1}; nothing was saved: {next_step}"
    if (state := states.newest(checkpoints)) is None:
        return f"stopped in epoch {done + 1}, before the first state was saved in {checkpoints}"
    return f"stopped in epoch {done + 1}; {checkpoints} holds epoch {states.number(state)}: the same call goes on from there"


class _bar:
    """A bar over epochs with the last loss and the best validation; invisible unless asked for."""

    def __init__(self, epochs: int, done: int, visible: bool):
        columns = ("epoch", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
        self.progress = Progress(*columns, disable=not visible)
        self.task = self.progress.add_task("", total=epochs, completed=done, note="")

    def __enter__(self) -> Callable[[History, int, float], None]:
        self.progress.start()
        return self.advance

    def advance(self, history: History, number: int, share: float) -> None:
        note = f"loss {history.epochs[-1]['loss']:,.2f}" if history.epochs else ""
        if history.best is not None:
            note += f", best {VALIDATION_MEASURE} {history.best_measure:.4f} in epoch {history.best}"
        self.progress.update(self.task, completed=number - 1 + share, note=note)

    def __exit__(self, *error: object) -> None:
        self.progress.stop()
