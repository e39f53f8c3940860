"""Scores of all users, part by part, into one Parquet file or a folder of them; the target appears only when complete.

    scores.parquet                    one file
    scores/part-00000.parquet …       a folder of parts, which any reader takes as one table
    scores.unfinished/1f3a…/parts/    finished parts, beside either; the same query continues from there

The query decides the users and the name of a part. A part is written under a temporary name and renamed, so two engines, or a
run after a crash, write the same file. Memory is that of one part.
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
from lbdrop.io.files import PART, check_plain, disk_errors, locked, real, remove, replacing
from lbdrop.recommend.answer.history_parts import HistoryParts, SpooledParts, ids_fingerprint, split_into_parts
from lbdrop.recommend.answer.queries import Query, SelectedUsers
from lbdrop.recommend.answer.scoring import Best
from lbdrop.recommend.answer.tables import ranked_columns
from lbdrop.recommend.data.polars_panics import interrupt_or_itself, panics_as_errors
from lbdrop.recommend.train.checkpoints import fingerprint

if TYPE_CHECKING:
    from lbdrop.recommend.recommender import Recommender

__all__ = [
    "Engine",
    "check_target",
    "part_name",
    "score_locally",
    "score_part",
    "score_to",
    "unfinished",
    "write_tables",
]

ROWS_IN_MEMORY = 1_000_000
"""Rows held before they are written, a few dozen megabytes; also the rows of a part."""

WORK = rf"[0-9a-f]{{16}}/(job\.json|(model|histories|parts)/)?.*(\.parquet|\.json|\.safetensors|{PART}(/.*)?)"
"""The files of unfinished scores, as a pattern."""
MARK = {"lbdrop": "scores"}
"""In the metadata of our files: other programs use such names, and such columns, too."""

Advance = Callable[[float], None]


class Engine(Protocol):
    """Scores the parts of these numbers into ``folder``/parts; calls ``advance`` with each finished share of a part."""

    def __call__(
        self, model: "Recommender", histories: HistoryParts, query: Query, folder: Path, numbers: Sequence[int],
        advance: Advance,
    ) -> None: ...  # fmt: skip


def unfinished(path: Path) -> Path:
    """The folder of finished parts until all are there."""
    path = real(path)
    return path.with_name(f"{path.name}.unfinished")


def part_name(number: int) -> str:
    return f"part-{number:05d}.parquet"


def check_target(path: Path) -> None:
    """An error if scores cannot be written there; called before the work begins.

    They replace scores, by the mark in our files, and nothing else.
    """
    if not path.exists():
        return
    if path.suffix == ".parquet" and path.is_dir():
        raise DropoutError(f"{path}: want a file, got a folder of that name; choose another")
    if not path.is_dir():
        if not _is_ours(path):
            raise DropoutError(f"{path}: want a new file, or one of scores, got something else; choose another")
        return
    ours = ((_is_part(each) and _is_ours(each)) or re.fullmatch(PART, each.name) for each in path.iterdir())
    if not all(ours):
        raise DropoutError(
            f"{path}: want a new or empty folder, or one of scores alone, got something else; choose another, or a file with"
            f" {path.name}.parquet"
        )


def _is_ours(path: Path) -> bool:
    try:
        check_plain(path)
        with panics_as_errors():
            return pl.read_parquet_metadata(path).get("lbdrop") == MARK["lbdrop"]
    except (DropoutError, OSError, pl.exceptions.PolarsError):
        return False


def score_to(
    model: "Recommender",
    path: Path,
    users: object,
    query: Query,
    engine: Engine | None = None,
    progress: bool = True,
) -> int:
    """Write the scores to ``path``, a file if its name ends in .parquet and a folder of parts otherwise; return the rows."""
    check_target(path)
    histories = split_into_parts(
        users, model.fitted_ids(), max(ROWS_IN_MEMORY // min(max(query.k, 1), len(model.items_)), 1)
    )
    work = unfinished(path)
    with locked(work, WORK), _bar(progress) as bar:
        folder = work / _identity(model, histories, query)
        for other in work.iterdir():
            if other.is_dir() and other != folder:
                shutil.rmtree(other)  # of an earlier query
        parts = folder / "parts"
        try:
            parts.mkdir(parents=True, exist_ok=True)
            if isinstance(histories, SpooledParts):
                histories = histories.fill(folder / "histories")
            missing = [number for number in range(len(histories)) if not (parts / part_name(number)).exists()]
            task = bar.add_task("", total=len(histories), completed=len(histories) - len(missing))
            (engine or score_locally)(model, histories, query, folder, missing, lambda share: bar.advance(task, share))
            rows = _finish(path, [parts / part_name(number) for number in range(len(histories))])
        except BaseException as found:
            error = interrupt_or_itself(found)
            finished = sum(map(_is_part, parts.iterdir())) if parts.exists() else 0
            if not finished:
                remove(work, WORK)
            elif type(error) is KeyboardInterrupt:
                raise KeyboardInterrupt(
                    f"stopped after {finished} of {len(histories)} parts, which are in {work}: the same call goes on from there"
                ) from None
            raise error from error.__cause__
        remove(work, WORK)
    return rows


def score_locally(
    model: "Recommender",
    histories: HistoryParts,
    query: Query,
    folder: Path,
    numbers: Sequence[int],
    advance: Advance,
) -> None:
    """The default engine: one part after the other in this process."""
    for number in numbers:
        score_part(model, histories[number], query, folder / "parts" / part_name(number), advance)


def score_part(
    model: "Recommender", users: SelectedUsers, query: Query, path: Path, advance: Advance = lambda share: None
) -> None:
    """Write the scores of one part; every engine calls this function."""
    spread = query.samples > 1
    no_rows = Best(torch.zeros(0, 1, dtype=torch.int64), torch.zeros(0, 1), torch.zeros(0, 1))
    schema = pl.DataFrame(ranked_columns(no_rows, users.ids[:0], model.catalogue_, spread))  # a part may have no users

    def tables() -> Iterator[pl.DataFrame]:
        done = 0
        for best in model.best(users.rows, query):
            ids = users.ids[done : done + len(best.item)]
            yield pl.DataFrame(ranked_columns(best, ids, model.catalogue_, spread))
            done += len(ids)
            advance(len(ids) / len(users.ids))

    write_tables(path, chain([schema], tables()))
    if not len(users.ids):
        advance(1.0)


def write_tables(path: Path, tables: Iterable[pl.DataFrame]) -> None:
    """Write the tables in order to one Parquet file, within the memory of ``ROWS_IN_MEMORY`` rows."""
    pieces = path.with_name(f"{path.name}.{os.getpid()}.pieces")
    try:
        with replacing(path) as temporary:
            buffer: list[pl.DataFrame] = []
            files, rows = [], 0
            for table in tables:
                buffer.append(table)
                rows += len(table)
                if rows >= ROWS_IN_MEMORY:
                    pieces.mkdir(exist_ok=True)
                    files.append(pieces / f"{len(files):06d}.parquet")
                    pl.concat(buffer).write_parquet(files[-1])
                    rows, buffer = 0, buffer[:0]
            last = pl.concat(buffer) if buffer else pl.read_parquet(files[0], n_rows=0) if files else pl.DataFrame()
            if files:
                # Polars writes row groups as it reads them, so the pieces are never in memory together.
                pl.concat([pl.scan_parquet(files), last.lazy()]).sink_parquet(temporary, metadata=MARK)
            else:
                last.write_parquet(temporary, metadata=MARK)
    finally:
        shutil.rmtree(pieces, ignore_errors=True)


# -------------------------------------------------------------------------------------------------------------- pieces


def _finish(path: Path, parts: list[Path]) -> int:
    """Make one file or one folder of the parts, which stay until it is in place."""
    with replacing(path) as temporary:
        if path.suffix == ".parquet":
            pl.scan_parquet(parts).sink_parquet(temporary, metadata=MARK)
        else:
            temporary.mkdir()
            for part in parts:
                _link(part, temporary / part.name)
    with disk_errors(path):
        return pl.scan_parquet(path).select(pl.len()).collect().item()


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def _identity(model: "Recommender", histories: HistoryParts, query: Query) -> str:
    """16 hexadecimal digits that differ for another model, other users or another query."""
    tensors = model.state()
    arrays = [tensors[name].detach().cpu().reshape(-1).view(torch.uint8).numpy() for name in sorted(tensors)]
    identity = {
        "format": 1,
        "question": asdict(query),
        "histories": histories.identity(),
        "items": ids_fingerprint(model.items_),
        "likes": fingerprint(np.asarray(model.likes_)),
        "tensors": [sorted(tensors), fingerprint(*arrays)],
        "method": [model.choice.method, repr(model.settings_), model.seed, model.at_least],
    }
    if (new := model.new_items_) is not None:
        arrays = [each.cpu().numpy() for each in (new.from_scores, new.features)]
        identity["new items"] = [ids_fingerprint(new.ids), fingerprint(*arrays)]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


def _is_part(path: Path) -> bool:
    return re.fullmatch(r"part-\d{5,}\.parquet", path.name) is not None


def _bar(visible: bool) -> Progress:
    columns = ("parts", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, disable=not visible, transient=True)
