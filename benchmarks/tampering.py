"""A thousand tamperings of what lbdrop saves: is each refused in one line, quickly, and within bounded memory?

Folders of a linear model, of an autoencoder, of unfinished training and of prepared data are damaged, one file at a time:

    flip       a bit of a file
    cut        a file ends early, or has more at its end
    swap       a file of another such folder, or of the same folder under another name, or no file
    reverse    the bytes of a file or a list in its JSON, back to front
    type       a value of the JSON is of another type
    special    a FIFO, a device, a folder, a link out of the folder, a file of holes of the same or of terabytes' size
    bomb       Parquet that unfolds to 400 MB, JSON nested a million times; sealed again, as a forger would

Each is read in a process of its own, which is forked from one that has imported everything and read nothing. *Silent* is a
folder that was read without an error. Memory is the peak above that of reading the whole folder. *Slow* is more than five
seconds of processor time, which other work on the machine does not change, or no end within a minute of the clock.

Run: ``python -m benchmarks.tampering``; the test suite does so with 60.
"""

import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import polars as pl
import torch
import typer

from benchmarks.fuzz_changes import resealed
from lbdrop.errors import DropoutError
from lbdrop.io.records import provenance, write_json
from lbdrop.recommend.data.prepare_own import prepare_files
from lbdrop.recommend.data.prepared import load_prepared
from lbdrop.recommend.recommender import Recommender

__all__ = ["campaign", "main"]

SECONDS, MINUTE, MEGABYTES = 5.0, 60.0, 200
KINDS = ("flip", "cut", "swap", "reverse", "type", "special", "bomb")
SMALL: dict[str, Any] = {"epochs": 2, "hidden": 8, "latent": 4, "validation": 40, "progress": False}


def main(
    tamperings: Annotated[int, typer.Option(min=1, help="In all, over kinds and folders.")] = 1_000,
    seed: Annotated[int, typer.Option(help="Draws them.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The JSON to write.")] = None,
) -> None:
    """Count what is refused, and what is not."""
    found = campaign(tamperings, seed)
    print(json.dumps(found["total"]))
    result = {"settings": {"tamperings": tamperings, "seed": seed}, **found, "provenance": provenance()}
    print(f"JSON: {write_json(out or Path(__file__).parent / 'results' / 'tampering.json', result)}")
    raise typer.Exit(int(any(found["total"][fault] for fault in ("silent", "tracebacks", "slow", "large"))))


# -------------------------------------------------------------------------------------------------------------- folders


class Folder(NamedTuple):
    """A kind of folder: how it is made, and how it is read."""

    make: Callable[[Path, int], Any]
    read: Callable[[Path], Any]


def likes(seed: int) -> pl.DataFrame:
    draw = random.Random(seed)
    rows = [(user, f"item-{(user % 4) * 10 + draw.randrange(14)}") for user in range(160) for _ in range(9)]
    return pl.DataFrame(rows, schema=["user_id", "item_id"], orient="row")


def fitted(method: str, **changes: Any) -> Callable[[Path, int], Any]:
    return lambda folder, seed: Recommender(method, **changes).fit(likes(seed)).save(folder)


def trained(folder: Path, seed: int = 0) -> Any:
    """Training that begins, or goes on where its state is."""
    return Recommender("vae-drop", seed=seed, **SMALL).fit(likes(0), checkpoints=folder)


def prepared(folder: Path, seed: int) -> Any:
    likes(seed).write_csv(folder.with_suffix(".csv"))
    prepare_files(folder.with_suffix(".csv"), folder.with_suffix(".out"))
    (folder.with_suffix(".out") / "own").rename(folder)


FOLDERS = {
    "linear model": Folder(fitted("ease"), Recommender.load),
    "autoencoder": Folder(fitted("vae-drop", **SMALL), Recommender.load),
    "unfinished training": Folder(trained, trained),
    "prepared data": Folder(prepared, load_prepared),
}


# ------------------------------------------------------------------------------------------------------------ tampering


def tamper(folder: Path, other: Path, kind: str, draw: random.Random) -> str:
    """Change one file of ``folder``; ``other`` is another folder of its kind. Returns what was done."""
    files = sorted(each for each in folder.rglob("*") if each.is_file())
    path = draw.choice(files)
    data, header = path.read_bytes(), next(each for each in files if each.suffix == ".json")
    if kind == "flip":
        place = draw.randrange(len(data))
        path.write_bytes(data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :])
        return f"{path.name}: a bit of byte {place}"
    if kind == "cut":
        length = draw.randrange(len(data))
        path.write_bytes(draw.choice([data[:length], data + data[:length] + b"\0"]))
    elif kind == "swap":
        twin = other / path.relative_to(folder)
        way = draw.choice(["other", "same", "none"])
        if way == "none" or (way == "other" and (not twin.exists() or twin.read_bytes() == data)):
            path.unlink()
        else:
            second = draw.choice([each for each in files if each != path])
            path.write_bytes(twin.read_bytes() if way == "other" else second.read_bytes())
    elif kind == "reverse":
        lists = [
            value for value in _values(json.loads(header.read_text())) if isinstance(value, list) and len(value) > 1
        ]
        if lists and draw.random() < 0.5:
            text = json.loads(header.read_text())
            next(each for each in _values(text) if each == lists[0]).reverse()
            header.write_text(json.dumps(text, indent=1, ensure_ascii=False) + "\n")
        else:
            path.write_bytes(data[::-1])
    elif kind == "type":
        text = json.loads(header.read_text())
        holder = draw.choice([each for each in (text, *_values(text)) if isinstance(each, dict) and each])
        name = draw.choice(sorted(holder))
        holder[name] = draw.choice([each for each in (None, True, -1, 0.5, "x", [], {}) if each != holder[name]])
        header.write_text(json.dumps(text, indent=1, ensure_ascii=False) + "\n")
    elif kind == "special":
        return _special(path, draw)
    else:
        return _bomb(folder, draw)
    return f"{kind}: {path.name}"


def _special(path: Path, draw: random.Random) -> str:
    size, outside = path.stat().st_size, path.parents[1] / "outside"
    shutil.copyfile(path, outside)
    path.unlink()
    what = draw.choice(["FIFO", "device", "folder", "link", "holes", "terabytes"])
    if what == "FIFO":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what in ("device", "link"):
        path.symlink_to(draw.choice(["/dev/zero", "/dev/random"]) if what == "device" else outside)
    else:
        path.touch()
        os.truncate(path, size if what == "holes" else 1 << draw.choice([40, 42]))
    return f"{what}: {path.name}"


def _bomb(folder: Path, draw: random.Random) -> str:
    tables = sorted(folder.rglob("*.parquet"))
    if tables and draw.random() < 0.8:
        path = draw.choice(tables)
        table = pl.read_parquet(path)
        long = [f"{row} " + "x" * (400_000_000 // len(table)) for row in range(len(table))]
        table.with_columns(pl.Series(table.columns[0], long)).write_parquet(path, statistics=False)
    else:
        path = next(iter(folder.rglob("*.json")))
        text = path.read_text().rstrip().removesuffix("}").rstrip()
        path.write_text(f'{text},\n "deep": {"[" * 1_000_000}{"]" * 1_000_000}\n}}\n')
    files = {each.relative_to(folder).as_posix(): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    for name, content in resealed(files).items():
        (folder / name).write_bytes(content)
    return f"bomb: {path.name}"


def _values(tree: Any) -> list[Any]:
    inside = list(tree.values()) if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    return [value for each in inside for value in (each, *_values(each))]


# ------------------------------------------------------------------------------------------------------------- campaign


class Read(NamedTuple):
    """What came of reading a folder in a process of its own."""

    said: str
    seconds: float
    """By the clock."""
    processor: float
    """Seconds of processor time."""
    megabytes: float


def campaign(tamperings: int, seed: int = 0) -> dict[str, Any]:
    """So many tamperings; counts by kind and folder, what was slow or large, and the first faults."""
    os.environ["POLARS_MAX_THREADS"] = "1"
    torch.set_num_threads(1)
    import lightning.fabric  # noqa: F401  # once, rather than in every process

    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    draw, faults, most = random.Random(seed), [], Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        whole = {}
        for name, folder in FOLDERS.items():
            for number in (0, 1):
                here = Path(place) / f"{name} {number}"
                said = _apart(lambda here=here, folder=folder, number=number: folder.make(here, number)).said
                assert said == "read", f"{name}: {said}"
            whole[name] = _apart(lambda folder=folder, name=name: folder.read(_copy(Path(place) / f"{name} 0")))
            assert whole[name].said == "read", whole[name].said
        for number in range(tamperings):
            kind, name = KINDS[number % len(KINDS)], draw.choice(sorted(FOLDERS))
            work, what = _copy(Path(place) / f"{name} 0"), str(draw.random())
            note = Path(place) / "note"
            act = lambda: note.write_text(tamper(work, Path(place) / f"{name} 1", kind, random.Random(what)))  # noqa: B023, E731
            said = _apart(act).said if kind == "bomb" else act() and "read"  # polars must not run before a fork
            assert said == "read", said
            found = _apart(lambda: FOLDERS[name].read(work))  # noqa: B023
            beyond = found.megabytes - whole[name].megabytes
            most |= Counter(
                {"seconds": found.seconds, "processor_seconds": found.processor, "megabytes_beyond_the_folder": beyond}
            )
            flags = {
                "silent": found.said == "read",
                "tracebacks": found.said != "read" and not found.said.startswith("refused: "),
                "slow": found.processor > SECONDS or found.seconds > MINUTE,
                "large": beyond > MEGABYTES,
            }
            wrong = [fault for fault, true in flags.items() if true]
            counts[kind].update(["tamperings", *(wrong or ["refused"])])
            if wrong:
                faults.append({"faults": wrong, "folder": name, "what": note.read_text(), "said": found.said[:300]})
    keys = ("tamperings", "refused", "silent", "tracebacks", "slow", "large")
    kinds = {kind: {key: counts[kind][key] for key in keys} for kind in KINDS}
    total = {key: sum(each[key] for each in kinds.values()) for key in keys}
    limits = ("seconds", "processor_seconds", "megabytes_beyond_the_folder")
    return {
        "total": total,
        "most": {name: round(most[name], 2) for name in limits},
        "kinds": kinds,
        "faults": faults[:20],
    }


def _copy(folder: Path) -> Path:
    work = folder.parent / "work" / "folder"
    shutil.rmtree(work.parent, ignore_errors=True)
    shutil.copytree(folder, work)
    return work


def _apart(act: Callable[[], Any]) -> Read:
    """Do something in a fork: "read", "refused: …", or whatever else it ended with."""
    hear, speak = os.pipe()
    start = time.perf_counter()
    child = os.fork()
    if not child:
        _act(act, speak)
    os.close(speak)
    ended, status, usage = 0, 0, None
    while not ended:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if not ended and time.perf_counter() - start > MINUTE:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.001)
    said = os.read(hear, 1 << 16).decode()
    os.close(hear)
    assert usage is not None
    processor = usage.ru_utime + usage.ru_stime
    return Read(said or f"ended with {status}", time.perf_counter() - start, processor, usage.ru_maxrss / 1024)


def _act(act: Callable[[], Any], speak: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("error")
    said = "nothing"
    try:
        act()
        said = "read"
    except DropoutError as error:
        said = f"refused: {error}" if len(str(error).splitlines()) == 1 else f"several lines: {error}"
    except BaseException as error:  # whatever it is, it is counted
        said = f"{type(error).__name__}: {error}"
    finally:
        os.write(speak, said.encode()[: 1 << 15])
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    typer.run(main)
