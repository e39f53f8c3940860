"""Scores of everybody, part by part, into a Parquet file or a folder of them that is there whole or not at all.

    scores.parquet                    one file
    scores/part-00000.parquet …       a folder of parts, which any reader takes as one table
    scores.unfinished/1f3a…/parts/    what is done so far, beside either; the same question goes on from there

A part's users and its name follow from the question, and a part is written beside its place and renamed: made twice, by two
engines or after a crash, it is the same file. Memory is that of one part, however many there are.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import polars as pl
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from lbdrop.errors import DropoutError
from lbdrop.io.files import alone, disk_errors, remove, replacing
from lbdrop.recommend.checkpoints import fingerprint
from lbdrop.recommend.history_parts import Histories, Spool, histories_of, of_ids
from lbdrop.recommend.polars_panics import as_interrupt
from lbdrop.recommend.queries import Asked, Question
from lbdrop.recommend.scoring import Best
from lbdrop.recommend.tables import ranked

if TYPE_CHECKING:
    from lbdrop.recommend.model import Recommender

__all__ = ["Engine", "check_output", "here", "part_name", "score_part", "score_to", "to_parquet", "unfinished"]

ROWS = 1_000_000
"""Rows held before they are written: a few dozen megabytes, and parts that are worth a file."""

Advance = Callable[[float], None]


class Engine(Protocol):
    """What scores the parts of these numbers into ``folder``/parts, and tells of every share of a part that is done."""

    def __call__(
        self, model: "Recommender", histories: Histories, question: Question, folder: Path, numbers: Sequence[int],
        advance: Advance,
    ) -> None: ...  # fmt: skip


def unfinished(path: Path) -> Path:
    """Where parts are kept until all of them are there."""
    return path.with_name(f"{path.name}.unfinished")


def part_name(number: int) -> str:
    return f"part-{number:05d}.parquet"


def check_output(path: Path) -> None:
    """An error where scores cannot be written, told before the work."""
    if path.suffix == ".parquet":
        if path.is_dir():
            raise DropoutError(f"{path}: want a file, got a folder of that name; choose another")
    elif path.exists() and (not path.is_dir() or any(not _is_part(each) for each in path.iterdir())):
        raise DropoutError(
            f"{path}: want a new or empty folder, or one of scores alone, got something else; choose another, or a file with"
            f" {path.name}.parquet"
        )


def score_to(
    model: "Recommender",
    path: Path,
    users: object,
    question: Question,
    engine: Engine | None = None,
    progress: bool = True,
) -> int:
    """Write the answers to ``path``, a file if its name ends in .parquet and a folder of parts otherwise; return the rows."""
    check_output(path)
    histories = histories_of(users, model.known(), max(ROWS // min(max(question.k, 1), len(model.items_)), 1))
    work = unfinished(path)
    with alone(work), _bar(progress) as bar:
        folder = work / _identity(model, histories, question)
        for other in work.iterdir():
            if other.is_dir() and other != folder:
                shutil.rmtree(other)  # another question's, that nobody waits for any more
        parts = folder / "parts"
        try:
            parts.mkdir(parents=True, exist_ok=True)
            if isinstance(histories, Spool):
                histories = histories.fill(folder / "histories")
            left = [number for number in range(len(histories)) if not (parts / part_name(number)).exists()]
            task = bar.add_task("", total=len(histories), completed=len(histories) - len(left))
            (engine or here)(model, histories, question, folder, left, lambda share: bar.advance(task, share))
            rows = _finish(path, [parts / part_name(number) for number in range(len(histories))])
        except BaseException as found:
            error = as_interrupt(found)
            done = sum(map(_is_part, parts.iterdir())) if parts.exists() else 0
            if not done:
                remove(work)
            elif type(error) is KeyboardInterrupt:
                raise KeyboardInterrupt(
                    f"stopped after {done} of {len(histories)} parts, which are in {work}: the same call goes on from there"
                ) from None
            raise error from error.__cause__
        remove(work)
    return rows


def here(
    model: "Recommender",
    histories: Histories,
    question: Question,
    folder: Path,
    numbers: Sequence[int],
    advance: Advance,
) -> None:
    """The engine that needs nothing: one part after the other in this process."""
    for number in numbers:
        score_part(model, histories[number], question, folder / "parts" / part_name(number), advance)


def score_part(
    model: "Recommender", asked: Asked, question: Question, path: Path, advance: Advance = lambda share: None
) -> None:
    """Write the answers of one part: the function that every engine runs."""
    spread = question.samples > 1
    nobody = Best(torch.zeros(0, 1, dtype=torch.int64), torch.zeros(0, 1), torch.zeros(0, 1))
    none = pl.DataFrame(ranked(nobody, asked.ids[:0], model.items_, spread))  # names and types, whoever is in this part

    def tables() -> Iterator[pl.DataFrame]:
        done = 0
        for best in model.best(asked.rows, question):
            ids = asked.ids[done : done + len(best.item)]
            yield pl.DataFrame(ranked(best, ids, model.items_, spread))
            done += len(ids)
            advance(len(ids) / len(asked.ids))

    to_parquet(path, chain([none], tables()))
    if not len(asked.ids):
        advance(1.0)


def to_parquet(path: Path, tables: Iterable[pl.DataFrame]) -> None:
    """Write the tables in order; memory is that of ``ROWS`` rows, however many there are."""
    pieces = path.with_name(f"{path.name}.{os.getpid()}.pieces")
    try:
        with replacing(path) as beside:
            waiting: list[pl.DataFrame] = []
            files, held = [], 0
            for table in tables:
                waiting.append(table)
                held += len(table)
                if held >= ROWS:
                    pieces.mkdir(exist_ok=True)
                    files.append(pieces / f"{len(files):06d}.parquet")
                    pl.concat(waiting).write_parquet(files[-1])
                    held, waiting = 0, waiting[:0]
            last = pl.concat(waiting) if waiting else pl.read_parquet(files[0], n_rows=0) if files else pl.DataFrame()
            if files:
                # Polars writes row groups as it reads them, so the pieces are never together in memory.
                pl.concat([pl.scan_parquet(files), last.lazy()]).sink_parquet(beside)
            else:
                last.write_parquet(beside)
    finally:
        shutil.rmtree(pieces, ignore_errors=True)


# -------------------------------------------------------------------------------------------------------------- pieces


def _finish(path: Path, parts: list[Path]) -> int:
    """The parts as one file or one folder. They stay where they are until that is in its place."""
    with replacing(path) as beside:
        if path.suffix == ".parquet":
            pl.scan_parquet(parts).sink_parquet(beside)
        else:
            beside.mkdir()
            for part in parts:
                _link(part, beside / part.name)
    with disk_errors(path):
        return pl.scan_parquet(path).select(pl.len()).collect().item()


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def _identity(model: "Recommender", histories: Histories, question: Question) -> str:
    """What tells this work from any other: a model, users and a question."""
    tensors = model.state()
    numbers = [tensors[name].detach().cpu().reshape(-1).view(torch.uint8).numpy() for name in sorted(tensors)]
    told = {
        "format": 1,
        "question": asdict(question),
        "histories": histories.identity(),
        "items": of_ids(model.items_),
        "likes": fingerprint(np.asarray(model.likes_)),
        "tensors": [sorted(tensors), fingerprint(*numbers)],
        "method": [model.choice.method, repr(model.settings_), model.seed, model.at_least],
    }
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def _is_part(path: Path) -> bool:
    return re.fullmatch(r"part-\d{5,}\.parquet", path.name) is not None


def _bar(shown: bool) -> Progress:
    columns = ("parts", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, disable=not shown, transient=True)
