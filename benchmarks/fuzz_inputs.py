"""The readers of lbdrop, each with a small valid input and the command or function that a user calls with it."""

import io
import json
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from typer.testing import CliRunner

from benchmarks.fuzz_changes import resealed
from lbdrop.cli import app
from lbdrop.errors import DropoutError
from lbdrop.io.files import LOCK, MARK

__all__ = [
    "RECOMMENDER",
    "Contents",
    "Reader",
    "archived",
    "command",
    "npz",
    "outcome",
    "packed_tar",
    "packed_zip",
    "reported",
]


Contents = Mapping[str, bytes]
"""By the name of a file."""


class Reader(NamedTuple):
    """A format: a valid input, and what reads it from a folder."""

    files: Callable[[], Contents]
    read: Callable[[Path], None]
    sign: Callable[[Contents], Contents] = lambda files: files
    """Puts right the checksums of files that were changed, as a forger would."""


def outcome(reader: Reader, files: Contents, folder: Path) -> str:
    """What became of an input: "accepted", or the one line that refuses it; whatever else happens is a fault."""
    inside = folder / "in"
    for name, content in files.items():
        (inside / name).parent.mkdir(parents=True, exist_ok=True)
        (inside / name).write_bytes(content)
    try:
        reader.read(inside)
    except DropoutError as error:
        line = str(error)
        assert line.strip(), "a refusal without a reason"
        assert len(line.splitlines()) == 1, f"a refusal of several lines: {line!r}"
        return line
    return "accepted"


def command(*words: object) -> None:
    """A command in this process. Its one line on stderr is raised again; a traceback comes as what caused it."""
    result = CliRunner().invoke(app, list(map(str, words)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in (0, 1, 2), f"exit code {result.exit_code}"
    if result.exit_code:
        raise DropoutError(result.stderr.strip())


def packed_zip(files: Contents) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in files.items():
            out.writestr(name, content)
    return made.getvalue()


def packed_tar(files: Contents, mode: str = "w:gz") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as out:  # pyright: ignore[reportCallIssue, reportArgumentType]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return made.getvalue()


def npz(**arrays: Any) -> bytes:
    made = io.BytesIO()
    np.savez_compressed(made, **arrays)
    return made.getvalue()


def contents(folder: Path) -> Contents:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -------------------------------------------------------------------------------------------------------- recommending


@cache
def likes() -> pl.DataFrame:
    random = np.random.default_rng(0)
    pairs = [(user, item) for user in range(12) for item in sorted(random.permutation(10)[:6])]
    return pl.DataFrame(
        {"user_id": [u for u, _ in pairs], "item_id": [int(i) for _, i in pairs], "weight": [4.5] * len(pairs)}
    )


def written(way: str, **options: Any) -> bytes:
    made = io.BytesIO()
    getattr(likes(), way)(made, **options)
    return made.getvalue()


def fitted(name: str) -> Callable[[Path], None]:
    return lambda at: command("recommend", "fit", at / name, "--method", "popularity", "--out", at.parent / "out")


TINY: dict[str, Any] = {"epochs": 1, "hidden": 4, "latent": 2}


@cache
def model(method: str) -> Contents:
    from lbdrop.recommend.recommender import Recommender

    small = {} if method == "ease" else TINY
    with tempfile.TemporaryDirectory() as folder:
        Recommender(method, validation=0, progress=False, **small).fit(likes()).save(Path(folder) / "model")
        return contents(Path(folder) / "model")


@cache
def state() -> Contents:
    """What a fit leaves behind that is stopped before it can save its model."""
    from lbdrop.recommend.recommender import Recommender

    with tempfile.TemporaryDirectory() as folder:
        Recommender("vae-drop", validation=0, progress=False, **TINY).fit(likes(), checkpoints=Path(folder) / "state")
        return contents(Path(folder) / "state")


def resumed(at: Path) -> None:
    """The same fit again, from that state."""
    work = at.parent / "out.unfinished"
    shutil.copytree(at, work)
    (work / LOCK).write_bytes(MARK)
    likes().write_csv(at.parent / "history.csv")
    settings = [word for name, value in TINY.items() if name != "epochs" for word in ("--set", f"{name}={value}")]
    command("recommend", "fit", at.parent / "history.csv", "--out", at.parent / "out", "--method", "vae-drop", "--epochs", 1,
            "--validation", 0, *settings)  # fmt: skip


def streamed(name: str) -> Callable[[Path], None]:
    def read(at: Path) -> None:
        from lbdrop.recommend.data.prepare_own import prepare_files

        prepare_files(at / name, at.parent / "out")

    return read


def asked(at: Path) -> None:
    """All four verbs that load a model, while they go well."""
    history = at.parent / "history.csv"
    likes().with_columns(pl.col("user_id") + 100).write_csv(history)
    command("recommend", "score", at, "--out", at.parent / "scores.parquet", "--k", 3)
    command("recommend", "score", at, history, "--out", at.parent / "scores.parquet", "--k", 3)
    command("recommend", "evaluate", at, history)
    command("recommend", "similar", at, "3", "--k", 2)


# ------------------------------------------------------------------------------------------------------ official files

ML_20M = {
    "ratings.csv": b"userId,movieId,rating,timestamp\n"
    + b"".join(b"%d,%d,%.1f,11124%d\n" % (u, m, 4 + (u + m) % 3 / 2, u) for u in range(1, 9) for m in range(2, 9)),
    "movies.csv": b'movieId,title,genres\n2,Jumanji (1995),Adventure\n3,"City of Lost Children, The (1995)",Adventure\n',
}
ML_1M = {
    "ratings.dat": b"".join(b"%d::%d::%d::97830\n" % (u, m, 4 + (u + m) % 2) for u in range(1, 9) for m in range(2, 9)),
    "movies.dat": "2::Léon: The Professional (1994)::Drama\n3::James::Animation\n".encode("latin-1"),
}
NETFLIX = {
    f"mv_000000{m}.txt": b"%d:\n" % m + b"".join(b"%d,%d,2005-09-06\n" % (u, 4 + (u + m) % 2) for u in range(1, 9))
    for m in range(1, 8)
} | {"movie_titles.txt": b"1,2003,Dinosaur Planet\n2,NULL,Isle of Man, TT 2004\n"}
MSD = {
    "train_triplets.txt": b"".join(b"%040x\tSO%016X\t%d\n" % (u, s, 1 + s) for u in range(1, 202) for s in range(21)),
    "unique_tracks.txt": "TR1<SEP>SO0000000000000001<SEP>Björk<SEP>The Cove\n".encode(),
}
ML_1M_NPZ = {"user": np.repeat(np.arange(8), 7), "item": np.tile(np.arange(7), 8), "rating": np.full(56, 4.0, np.float32),
             "titles": np.array([f"film {i}" for i in range(7)]), "timestamp": np.zeros(56, np.int64)}  # fmt: skip
NETFLIX_NPZ = {"count": np.full(8, 7, np.uint16), "low": np.tile([0] + [1] * 6, 8).astype(np.uint8),
               "high": np.zeros(56, np.uint8), "movie_id": np.arange(1, 8, dtype=np.int32),
               "titles": np.array([f"film {i}" for i in range(7)])}  # fmt: skip


def prepared_from(name: str, file: str = "") -> Callable[[Path], None]:
    return lambda at: command(
        "data", "prepare", name, at / file, "--out", at.parent / "out", "--allow-partial", "--held-out-users", 1
    )


@cache
def prepared() -> Contents:
    from experiments.collaborative.data.prepare import prepare

    with tempfile.TemporaryDirectory() as folder:
        for name, content in ML_1M.items():
            (Path(folder) / name).write_bytes(content)
        prepare("ml-1m", folder, Path(folder) / "out", allow_partial=True, held_out_users=1)
        return contents(Path(folder) / "out" / "ml-1m")


def reproduced(at: Path) -> None:
    command("reproduce", "ml-1m", "--data", at, "--method", "popularity", "--out", at.parent / "out")


# -------------------------------------------------------------------------------------------------------------- records

RESULTS = Path(__file__).parent.parent / "experiments"


def records(folder: str, *names: str) -> Callable[[], Contents]:
    return lambda: {name: (RESULTS / folder / "results" / name).read_bytes() for name in names}


@cache
def demonstrated() -> Contents:
    """What ``lbdrop demo --quick`` writes, with one seed and one epoch."""
    from experiments.demo import run as demo
    from experiments.demo import shop as demo_shop

    result = demo.run(replace(demo.Settings.quick(), seeds=1, epochs=1, strengths=(1.0,)))
    result |= {"shop": demo_shop.run(demo_shop.ShopSettings.quick())}
    return {"result.json": json.dumps(result).encode()}


def reported(at: Path) -> None:
    command("report", at, "--out", at.parent / "out")


def archived(files: Contents, name: str, pack: Callable[[Contents], bytes]) -> Callable[[], Contents]:
    return lambda: {name: pack(files)}


RECOMMENDER: dict[str, Reader] = {
    "fit: CSV": Reader(lambda: {"likes.csv": written("write_csv")}, fitted("likes.csv")),
    "fit: TSV": Reader(lambda: {"likes.tsv": written("write_csv", separator="\t")}, fitted("likes.tsv")),
    "fit: Parquet": Reader(lambda: {"likes.parquet": written("write_parquet")}, fitted("likes.parquet")),
    "model folder: EASE": Reader(lambda: model("ease"), asked, resealed),
    "model folder: SIVAE": Reader(lambda: model("sivae-lbd"), asked, resealed),
    "fit: unfinished": Reader(state, resumed, resealed),
    "prepare: own CSV": Reader(lambda: ({"likes.csv": written("write_csv")}), streamed("likes.csv")),
    "prepare: own Parquet": Reader(lambda: ({"likes.parquet": written("write_parquet")}), streamed("likes.parquet")),
    "prepare: ml-20m": Reader(lambda: ML_20M, prepared_from("ml-20m")),
    "prepare: ml-20m.zip": Reader(archived(ML_20M, "ml-20m.zip", packed_zip), prepared_from("ml-20m", "ml-20m.zip")),
    "prepare: ml-1m": Reader(lambda: ML_1M, prepared_from("ml-1m")),
    "prepare: ml-1m.npz": Reader(lambda: {"ml-1m.npz": npz(**ML_1M_NPZ)}, prepared_from("ml-1m", "ml-1m.npz")),
    "prepare: netflix": Reader(lambda: NETFLIX, prepared_from("netflix")),
    "prepare: netflix.tar.gz": Reader(
        archived({"training_set.tar": packed_tar(NETFLIX, "w")}, "nf.tar.gz", packed_tar), prepared_from("netflix", "nf.tar.gz")
    ),
    "prepare: netflix.npz": Reader(lambda: {"netflix.npz": npz(**NETFLIX_NPZ)}, prepared_from("netflix", "netflix.npz")),
    "prepare: msd": Reader(lambda: MSD, prepared_from("msd")),
    "prepared folder": Reader(prepared, reproduced, resealed),
    "report: CIFAR-10": Reader(
        records("cifar10", "fast-lbd-unit-0.5-seed0.json", "fast-mc-0.3-seed0.json", "fast-mc-0.3-seed1.json"), reported
    ),
    "report: rates": Reader(records("rates", "uci-yacht.json"), reported),
    "report: demo": Reader(demonstrated, reported),
    "report: toy": Reader(records("toy", "toy.json"), reported),
    "report: benchmarks": Reader(
        lambda: {"variance.json": (RESULTS.parent / "benchmarks" / "results" / "variance.json").read_bytes()}, reported
    ),
    "report: recommenders": Reader(
        records("collaborative", "ml-1m-sivae-lbd-seed0.json", "ml-1m-ease-seed0.json"), reported
    ),
}  # fmt: skip
