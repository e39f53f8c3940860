"""A hundred million rows of Parquet become a training set, and a catalogue of a million items trains, in bounded memory.

Claims: preparing takes at most 4 GB of resident memory and loses nothing; a training step over a million items takes a few
times the memory of the parameters, where one dense table of the batch would take two gigabytes, and a step wants several.

The rows are drawn by a counter: item and weight of a user's k-th row are a hash of (user, k), items with the popularity of a
power law. The k-th rows of all users make a part, so that every user is in every part; what the training set must be is
computed from the same counter user by user, without the files. Each measurement is a process of its own, whose peak is the
kernel's (VmHWM).

Run: ``python -m benchmarks.big_data``; ``--rows 1000000 --users 20000`` is over in seconds.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import typer
from rich.console import Console
from rich.progress import track

from lbdrop.io.records import provenance, write_json

__all__ = ["expected", "main", "peak_bytes", "prepare", "score", "summary", "train", "write_parts"]

SKEW = 3.0
"""Item = items · u³: the first hundredth of the catalogue has a fifth of the rows."""
STEP = 100_000


def main(
    rows: Annotated[int, typer.Option(min=1, help="Rows to generate, a multiple of the users.")] = 100_000_000,
    users: Annotated[int, typer.Option(min=1)] = 1_000_000,
    items: Annotated[int, typer.Option(min=1)] = 500_000,
    text: Annotated[bool, typer.Option(help="Ids as text, such as customer-0000012345.")] = False,
    min_item_users: Annotated[int, typer.Option(min=0, help="Leave out items with fewer users.")] = 5,
    catalogue: Annotated[int, typer.Option(min=1, help="Items of the training steps.")] = 1_000_000,
    hidden: Annotated[int, typer.Option(min=1, help="Hidden units of the training steps.")] = 64,
    batch: Annotated[int, typer.Option(min=1, help="Users a training step.")] = 500,
    steps: Annotated[int, typer.Option(min=1)] = 3,
    folder: Annotated[Path | None, typer.Option(help="Where the files go; a temporary folder unless told.")] = None,
    out: Annotated[Path, typer.Option(help="The JSON to write.")] = Path(__file__).parent / "results" / "big_data.json",
) -> None:
    """Peak memory of preparing and of training, and whether what was prepared is what was drawn."""
    console = Console(highlight=False)
    each = rows // users
    with tempfile.TemporaryDirectory(dir=folder) as place:
        source = Path(place) / "events"
        size = write_parts(source, users, each, items, text)
        prepared = measured("prepare", source=str(source), out=place, min_item_users=min_item_users)
        wanted = expected(users, each, items, min_item_users)
        found = summary(Path(place) / "own")
    if found != wanted:
        raise SystemExit(f"want {wanted}, got {found}")
    trained = measured("train", catalogue=catalogue, hidden=hidden, batch=batch, steps=steps)
    record = {
        "prepare": {"rows": users * each, "parquet_bytes": size, "text_ids": text, "min_item_users": min_item_users,
                    "found": found, "as_expected": True, **prepared},
        "train": {"items": catalogue, "hidden": hidden, "batch": batch, "steps": steps,
                  "bytes_of_one_dense_table": 4 * catalogue * batch, **trained},
        **provenance(),
    }  # fmt: skip
    write_json(out, record)
    console.print_json(json.dumps(record))


# ---------------------------------------------------------------------------------------------------------------- rows


def drawn(user: np.ndarray, k: np.ndarray | int, items: int) -> tuple[np.ndarray, np.ndarray]:
    """Item and weight of each user's k-th row: a hash, so that any row can be asked for at any time."""
    bits = _mixed((user.astype(np.uint64) << np.uint64(20)) + np.asarray(k, np.uint64))
    place = (bits >> np.uint64(11)).astype(np.float64) / 2**53
    return (items * place**SKEW).astype(np.int64), (bits % np.uint64(5)).astype(np.float32) + 1


def _mixed(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    x = (x + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def write_parts(folder: Path, users: int, each: int, items: int, text: bool = False) -> int:
    """Parquet files of about a million rows with the k-th rows of all users; their bytes."""
    folder.mkdir()
    number = np.arange(users)
    levels = max(1, 1_000_000 // users)
    for first in track(range(0, each, levels), "writing", transient=True):
        ks = range(first, min(first + levels, each))
        parts = [pl.DataFrame({"user_id": number, **dict(zip(("item_id", "weight"), drawn(number, k, items), strict=True))})
                 for k in ks]  # fmt: skip
        table = pl.concat(parts)
        if text:
            table = table.with_columns(
                pl.format("customer-{}", pl.col("user_id").cast(pl.String).str.zfill(10)).alias("user_id"),
                pl.format("item-{}", pl.col("item_id").cast(pl.String).str.zfill(10)).alias("item_id"),
            )
        table.write_parquet(folder / f"{first:06d}.parquet")
    return sum(path.stat().st_size for path in folder.iterdir())


def expected(users: int, each: int, items: int, min_item_users: int) -> dict[str, int]:
    """Counts and a checksum of the distinct likes (weights of at least 2), without the files."""
    every = list(_distinct(users, each, items))
    kept = np.sum([np.bincount(pairs % items, minlength=items) for pairs in every], axis=0) >= min_item_users
    entries = checksum = left = 0
    for pairs in every:
        pairs = pairs[kept[pairs % items]]
        entries, checksum = entries + len(pairs), (checksum + _checksum(pairs // items, pairs % items)) % 2**64
        left += int((np.diff(pairs // items, prepend=-1) > 0).sum())
    return {"entries": entries, "users": left, "items": int(kept.sum()), "checksum": checksum}


def _distinct(users: int, each: int, items: int) -> Iterator[np.ndarray]:
    """user · items + item of some users' likes, each pair once and in order."""
    for first in range(0, users, STEP):
        number = np.repeat(np.arange(first, min(first + STEP, users)), each)
        item, weight = drawn(number, np.tile(np.arange(each), len(number) // each), items)
        yield np.unique(number[weight >= 2] * items + item[weight >= 2])


def _checksum(users: np.ndarray, items: np.ndarray) -> int:
    return int(_mixed(_mixed(users.astype(np.uint64)) + items.astype(np.uint64)).sum(dtype=np.uint64))


def summary(folder: Path) -> dict[str, int]:
    """The same of a prepared folder."""
    from lbdrop.recommend.data.prepared import load_prepared

    data = load_prepared(folder).interactions
    users, items = (
        ids.cast(pl.String).str.extract(r"(\d+)$").cast(pl.Int64).to_numpy() for ids in (data.users, data.items)
    )
    rows, checksum = data.rows, 0
    for first in range(0, len(users), STEP):
        part = slice(rows.indptr[first], rows.indptr[min(first + STEP, len(users))])
        lengths = np.diff(rows.indptr[first : first + STEP + 1])
        owner = np.repeat(users[first : first + STEP], lengths)
        checksum = (checksum + _checksum(owner, items[rows.indices[part]])) % 2**64
    return {"entries": int(rows.nnz), "users": len(users), "items": len(items), "checksum": checksum}


# -------------------------------------------------------------------------------------------------------- measurements


def measured(work: str, **arguments: Any) -> dict[str, float]:
    """Seconds and peak resident bytes of a piece of work in a process of its own."""
    call = [sys.executable, "-m", "benchmarks.big_data", "--work", work, json.dumps(arguments)]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def prepare(source: str, out: str, min_item_users: int) -> None:
    from lbdrop.recommend.data.prepare_own import prepare_files

    prepare_files(source, out, at_least=2, min_item_users=min_item_users)


def train(catalogue: int, hidden: int, batch: int, steps: int) -> tuple[Any, Any]:
    """Steps of SIVAE with learned rates."""
    from scipy.sparse import csr_array

    from lbdrop.recommend import VAE, fit, method

    users, each = batch * steps, 50
    number = np.repeat(np.arange(users), each)
    item, _ = drawn(number, np.tile(np.arange(each), users), catalogue)
    rows = csr_array((np.ones(len(item), np.float32), (number, item)), shape=(users, catalogue))
    model = VAE(catalogue, method("sivae-lbd", hidden=hidden, latent=hidden // 2, batch=batch, epochs=1))
    history = fit(model, rows, device="cpu", progress=False)
    assert np.isfinite(history.epochs[0]["loss"])
    return model, rows


def score(model: Any, rows: Any, samples: int = 10) -> None:
    """The 20 best items of some users."""
    import torch

    from lbdrop.recommend import Rows
    from lbdrop.recommend.answer.scoring import best_items, scoring

    for best in best_items(scoring(model, samples, seed=0), Rows.from_csr(rows), 20):
        assert bool(torch.isfinite(best.score).all())


def train_and_score(**arguments: Any) -> None:
    model, rows = train(**arguments)
    score(model, rows[:50])


def peak_bytes() -> int:
    """The most this process has ever had in memory, as the kernel counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


WORK: dict[str, Callable[..., None]] = {"prepare": prepare, "train": train_and_score}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        import lightning.fabric  # noqa: F401  # and torch: not what is measured

        import lbdrop.recommend  # noqa: F401

        before, started = peak_bytes(), time.perf_counter()
        WORK[sys.argv[2]](**json.loads(sys.argv[3]))
        print(
            json.dumps({"seconds": time.perf_counter() - started, "peak_bytes": peak_bytes(), "before_bytes": before})
        )
    else:
        typer.run(main)
