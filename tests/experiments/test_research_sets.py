"""Small files of the official formats give what they say, packed or not; a wrong file is named by line and by what was wanted."""

import contextlib
import io
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from experiments.collaborative.data import movielens, msd, netflix, official_files
from experiments.collaborative.data.protocols import PROTOCOLS, read
from lbdrop.errors import DropoutError

ML_20M = {
    "ratings.csv": b"userId,movieId,rating,timestamp\n1,2,3.5,1112486027\n1,29,4.0,1112484676\n2,2,0.5,1112484819\n",
    "movies.csv": b'movieId,title,genres\n2,Jumanji (1995),Adventure|Fantasy\n29,"City of Lost Children, The (1995)",Adventure\n'
    + "7,Amélie (2001),Comedy\n".encode(),
}
ML_1M = {
    "ratings.dat": b"1::1193::5::978300760\n1::661::3::978302109\n2::1193::4::978301968\n",
    "movies.dat": "1193::Léon: The Professional (1994)::Drama\n661::James and the Giant Peach (1996)::Animation\n".encode(
        "latin-1"
    ),
}
MOVIES = {
    "mv_0000001.txt": b"1:\n1488844,3,2005-09-06\n822109,5,2005-05-13\n",
    "mv_0000002.txt": b"2:\n2059652,4,2005-09-05\n",
    "mv_0017770.txt": b"17770:\n822109,1,2005-01-01\n6,2,2004-02-02\n",
}
TITLES = {"movie_titles.txt": b"1,2003,Dinosaur Planet\n2,2004,Isle of Man, TT 2004\n17770,NULL,Alien: Caf\xe9\n"}
NETFLIX = MOVIES | TITLES
USERS = ["b80344d063b5ccb3212f76538f3d9e43d87dca9e", "00007a02388c208ea7176479f6ae06f8224355b3"]
MSD = {
    "train_triplets.txt": f"{USERS[0]}\tSOAKIMP12A8C130995\t1\n{USERS[0]}\tSOAPDEY12A81C210A9\t12\n{USERS[1]}\tSOAKIMP12A8C130995\t2\n".encode(),
    "unique_tracks.txt": "TR1<SEP>SOAKIMP12A8C130995<SEP>Björk<SEP>The Cove\nTR2<SEP>SOAKIMP12A8C130995<SEP>x<SEP>y\n".encode(),
}
FILES = {"ml-20m": ML_20M, "ml-1m": ML_1M, "netflix": NETFLIX, "msd": MSD}
ROWS = {
    "ml-20m": [(1, 2, 3.5), (1, 29, 4.0), (2, 2, 0.5)],
    "ml-1m": [(1, 1193, 5.0), (1, 661, 3.0), (2, 1193, 4.0)],
    "netflix": [(1488844, 1, 3), (822109, 1, 5), (2059652, 2, 4), (822109, 17770, 1), (6, 17770, 2)],
    "msd": [
        (USERS[0], "SOAKIMP12A8C130995", 1),
        (USERS[0], "SOAPDEY12A81C210A9", 12),
        (USERS[1], "SOAKIMP12A8C130995", 2),
    ],
}
NAMES = {
    "ml-20m": {2: "Jumanji (1995)", 29: "City of Lost Children, The (1995)", 7: "Amélie (2001)"},
    "ml-1m": {1193: "Léon: The Professional (1994)", 661: "James and the Giant Peach (1996)"},
    "netflix": {1: "Dinosaur Planet", 2: "Isle of Man, TT 2004", 17770: "Alien: Café"},
    "msd": {"SOAKIMP12A8C130995": "Björk – The Cove"},
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Complete is what the small files have."""
    monkeypatch.setattr(movielens, "ML_20M_RATINGS", 3)
    monkeypatch.setattr(movielens, "ML_1M_RATINGS", 3)
    monkeypatch.setattr(netflix, "RATINGS", 5)
    monkeypatch.setattr(msd, "TRIPLETS", 3)


def folder(at: Path, files: dict[str, bytes]) -> Path:
    at.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (at / name).parent.mkdir(exist_ok=True)
        (at / name).write_bytes(content)
    return at


def zipped(at: Path, files: dict[str, bytes]) -> Path:
    at.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(at, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return at


def tarred(files: dict[str, bytes], mode: str = "w") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as tar:  # pyright: ignore
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


PACKED: dict[str, Callable[[Path, dict[str, bytes]], Path]] = {
    "a folder": folder,
    "a folder in it": lambda at, files: folder(at / "release", files).parent,
    "a zip": lambda at, files: zipped(at / "x.zip", {f"release/{name}": data for name, data in files.items()}),
    "a zip in a folder": lambda at, files: zipped(at / "x.zip", files).parent,
    "a tar.gz": lambda at, files: folder(at, {"x.tar.gz": tarred(files, "w:gz")}) / "x.tar.gz",
    "with CRLF": lambda at, files: folder(at, {n: d.replace(b"\n", b"\r\n") for n, d in files.items()}),
    "without a last newline": lambda at, files: folder(at, {n: d.rstrip(b"\n") for n, d in files.items()}),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("pack", PACKED)
def test_rows_and_titles_are_read_from_every_packing(name: str, pack: str, tmp_path: Path) -> None:
    ratings = read(name, PACKED[pack](tmp_path / "in", FILES[name]))
    assert ratings.frame.rows() == ROWS[name]
    assert ratings.frame.columns == ["user_id", "item_id", "weight"]
    assert ratings.titles is not None
    assert dict(ratings.titles.rows()) == NAMES[name]
    assert {name for name, _ in ratings.files} == set(FILES[name])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("size", [70, 90, 150])
def test_block_sizes_give_the_same_rows(name: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = folder(tmp_path, FILES[name])
    calls: list[tuple[int, int]] = []
    whole = official_files.blocks
    for module in (movielens, netflix, msd):
        monkeypatch.setattr(module, "blocks", lambda files, progress: whole(files, progress, size))
    assert read(name, at, progress=lambda done, total: calls.append((done, total))).frame.rows() == ROWS[name]
    assert calls[-1][0] == calls[-1][1] > 0


def test_netflix_is_read_as_on_kaggle_and_as_a_tar_in_a_tar(tmp_path: Path) -> None:
    joined = list(MOVIES.values())
    kaggle = {
        "combined_data_1.txt": joined[0] + joined[1],
        "combined_data_2.txt": joined[2],
        "movie_titles.csv": TITLES["movie_titles.txt"],
    }
    inner = tarred({f"training_set/{name}": data for name, data in MOVIES.items()})
    outer = tarred(
        {"download/training_set.tar": inner, "download/movie_titles.txt": TITLES["movie_titles.txt"]}, "w:gz"
    )
    for source in (
        zipped(tmp_path / "archive.zip", kaggle),
        folder(tmp_path / "nf", {"nf_prize_dataset.tar.gz": outer}),
    ):
        ratings = read("netflix", source)
        assert ratings.frame.rows() == ROWS["netflix"]
        assert ratings.titles is not None
        assert dict(ratings.titles.rows()) == NAMES["netflix"]


def test_movie_continues_in_the_next_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(user, 7, 1 + user % 5) for user in range(1, 60)] + [(3, 8, 5)]
    lines = ["7:", *(f"{user},{rating},2005-01-01" for user, _, rating in rows[:-1]), "8:", "3,5,2005-01-01"]
    at = folder(tmp_path, {"combined_data_1.txt": "\n".join(lines).encode()})
    whole = official_files.blocks
    monkeypatch.setattr(netflix, "blocks", lambda files, progress: whole(files, progress, 100))
    assert read("netflix", at, allow_partial=True).frame.rows() == rows


def test_single_file_is_enough_and_titles_beside_it_are_found(tmp_path: Path) -> None:
    at = folder(tmp_path, ML_20M) / "ratings.csv"
    assert read("ml-20m", at).titles is not None
    (tmp_path / "movies.csv").unlink()
    alone = read("ml-20m", at)
    assert (alone.titles, len(alone.frame)) == (None, 3)


@pytest.mark.parametrize("name", FILES)
def test_missing_and_surplus_ratings_are_counted_unless_allowed(name: str, tmp_path: Path) -> None:
    data = {"ml-20m": "ratings.csv", "ml-1m": "ratings.dat", "netflix": "mv_0017770.txt", "msd": "train_triplets.txt"}[
        name
    ]
    *head, last = FILES[name][data].splitlines(keepends=True)
    short = folder(tmp_path / "short", FILES[name] | {data: b"".join(head)})
    count = len(ROWS[name])
    with pytest.raises(
        DropoutError, match=f"want {count} ratings, .* got {count - 1}, 1 fewer; fetch .*--allow-partial"
    ):
        read(name, short)
    assert read(name, short, allow_partial=True).frame.rows() == ROWS[name][:-1]
    with pytest.raises(DropoutError, match=f"got {count + 1}, 1 more"):
        read(name, folder(tmp_path / "long", FILES[name] | {data: b"".join(head) + last + last}))


BAD_LINES = {
    ("ml-20m", "ratings.csv", b"2,2,0.5,", b"2,2,0.7,"): "ratings.csv, line 4: want userId,movieId,rating,timestamp .* got '2,2,0.7,1112484819'",
    ("ml-20m", "ratings.csv", b"1,29,4.0,", b"1,29,"): "ratings.csv, line 3: .* got '1,29,1112484676'",
    ("ml-20m", "ratings.csv", b"1,29,4.0,", b"1,29,4.0,9,"): "ratings.csv, line 3: ",
    ("ml-20m", "ratings.csv", b"2,2,0.5", b"two,2,0.5"): "ratings.csv, line 4: ",
    ("ml-20m", "ratings.csv", b"2,2,0.5,", b"2,2,5.5,"): "ratings.csv, line 4: ",
    ("ml-20m", "ratings.csv", b"2,2,0.5", b"\xff\xfe\x00,2,0.5"): "ratings.csv, line 4: ",
    ("ml-20m", "ratings.csv", b"userId,", b"user,"): "ratings.csv, line 1: want the header userId,movieId,rating,timestamp, got 'user,movie",
    ("ml-20m", "movies.csv", b"7,Am", b"seven,Am"): "movies.csv, line 4: want movieId,title,genres, got movie 'seven'",
    ("ml-20m", "movies.csv", b"movieId,", b"id,"): "movies.csv, line 1: want the header",
    ("ml-20m", "movies.csv", b"Jumanji", b"Jum\xe4nji"): "movies.csv, line 2: want text in utf-8",
    ("ml-1m", "ratings.dat", b"1::661::3::", b"1::661:3::"): "ratings.dat, line 2: want UserID::MovieID::Rating::Timestamp .* got '1::661:3::978302109'",
    ("ml-1m", "ratings.dat", b"2::1193::4", b"2::1193::6"): "ratings.dat, line 3: ",
    ("ml-1m", "movies.dat", b"::Animation", b""): "movies.dat, line 2: want MovieID::Title::Genres",
    ("netflix", "mv_0000002.txt", b"4,2005", b"9,2005"): "mv_0000002.txt, line 2: want movie: or user,rating,date .* got '2059652,9,2005-09-05'",
    ("netflix", "mv_0017770.txt", b",2004-02-02", b""): "mv_0017770.txt, line 3: ",
    ("netflix", "mv_0017770.txt", b"6,2,2004-02-02", b"6,2,2004-0"): "mv_0017770.txt, line 3: ",
    ("netflix", "mv_0000001.txt", b"822109,", b"x,"): "mv_0000001.txt, line 3: ",
    ("netflix", "mv_0000002.txt", b"2:\n", b""): "mv_0000002.txt, line 1: want a movie such as '1:', got '2059652,4,2005-09-05'",
    ("netflix", "mv_0017770.txt", b"6,2", b"17771:\n6,2"): "mv_0000001.txt: want movie: or user",
    ("netflix", "movie_titles.txt", b"2,2004,Isle", b"2;2004,Isle"): "movie_titles.txt, line 2: want movie,year,title, got '2;2004",
    ("msd", "train_triplets.txt", b"\t12\n", b"\t-12\n"): "train_triplets.txt, line 2: want user .* got 'b80344",
    ("msd", "train_triplets.txt", b"\t12\n", b"\n"): "train_triplets.txt, line 2: ",
    ("msd", "train_triplets.txt", b"00007a", b"7a"): "train_triplets.txt, line 3: ",
    ("msd", "unique_tracks.txt", b"x<SEP>y", b"x"): "unique_tracks.txt, line 2: want track<SEP>song",
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_LINES, ids=lambda case: f"{case[0]}-{case[3][:12]!r}")
def test_bad_line_is_named(case: tuple[str, str, bytes, bytes], tmp_path: Path) -> None:
    name, file, good, bad = case
    assert good in FILES[name][file]
    at = folder(tmp_path, FILES[name] | {file: FILES[name][file].replace(good, bad, 1)})
    with pytest.raises(DropoutError, match=BAD_LINES[case]):
        read(name, at, allow_partial=True)


@pytest.mark.parametrize("name", FILES)
def test_random_damage_never_ends_in_a_traceback(name: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    files = list(FILES[name])
    for trial in range(25):
        file = files[trial % len(files)]
        data = bytearray(FILES[name][file])
        for place in random.integers(len(data), size=3):
            data[place] = random.integers(256)
        if trial % 3 == 0:
            del data[random.integers(len(data)) :]
        at = folder(tmp_path / str(trial), FILES[name] | {file: bytes(data)})
        with contextlib.suppress(DropoutError):  # anything else is a failure
            assert read(name, at, allow_partial=True).frame.columns == ["user_id", "item_id", "weight"]


@pytest.mark.parametrize("pack", ["a zip", "a tar.gz"])
def test_truncated_or_garbled_archive_is_refused(pack: str, tmp_path: Path) -> None:
    at = PACKED[pack](tmp_path / "in", {"ratings.csv": ML_20M["ratings.csv"] * 50})
    whole = at.read_bytes()
    for broken in (
        whole[: len(whole) // 2],
        whole[:10],
        b"",
        b"not an archive at all" * 20,
        whole[:60] + b"\0" * 40 + whole[100:],
    ):
        at.write_bytes(broken)
        with pytest.raises(DropoutError, match="want"):
            read("ml-20m", at)


def test_missing_folder_and_folder_without_the_files_are_different_errors(tmp_path: Path) -> None:
    with pytest.raises(
        DropoutError,
        match=r"nowhere: want ratings.csv of MovieLens-20M, got nothing there; check the path, or see https",
    ):
        read("ml-20m", tmp_path / "nowhere")
    with pytest.raises(DropoutError, match="want train_triplets.txt, got none of it there"):
        read("msd", tmp_path)
    with pytest.raises(DropoutError, match="got titles alone"):
        read("netflix", folder(tmp_path / "t", TITLES))
    with pytest.raises(DropoutError, match=re.escape("want one ratings.csv there, got 0")):
        read("ml-20m", folder(tmp_path / "m", {"other.txt": b"1,2,3"}) / "other.txt")
    with pytest.raises(DropoutError, match="data set: want one of ml-20m, netflix, msd, ml-1m, got 'ml-100k'"):
        read("ml-100k", tmp_path)


def test_archive_writes_nothing_and_links_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_bytes(ML_20M["ratings.csv"])
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        link = tarfile.TarInfo("ratings.csv")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        tar.addfile(link)
    at = folder(tmp_path / "in", {"x.tar": made.getvalue()})
    with pytest.raises(DropoutError, match="got none of it there"):
        read("ml-20m", at / "x.tar")
    outside = zipped(tmp_path / "in" / "y.zip", {"../../ratings.csv": ML_20M["ratings.csv"]})
    assert len(read("ml-20m", outside).frame) == 3
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["in", "secret.csv", "x.tar", "y.zip"]


def packed_rows(rows: list[list[int]]) -> dict[str, np.ndarray]:
    """The compact form by its description: sorted items as gaps, the first as itself."""
    gaps = [b - a for row in rows for a, b in zip([0, *row], row, strict=False)]
    count = np.array([len(row) for row in rows], np.uint16)
    return {
        "count": count,
        "low": np.array([g % 256 for g in gaps], np.uint8),
        "high": np.array([g // 256 for g in gaps], np.uint8),
    }


def test_compact_netflix_form_unpacks(tmp_path: Path) -> None:
    rows = [[0, 3, 700], [], [5], [1, 2, 699], []]
    movie_id = np.arange(1000, 1000 + 701, dtype=np.int32)[::-1]
    path = tmp_path / "netflix.npz"
    np.savez_compressed(path, **packed_rows(rows), movie_id=movie_id, titles=np.array([f"film {i}" for i in movie_id]))
    with pytest.raises(DropoutError, match="want 56,880,037 ratings, .* got 7,"):
        read("netflix", path)
    ratings = read("netflix", path, allow_partial=True)
    assert ratings.frame.rows() == [(u, 1700 - i) for u, row in enumerate(rows) for i in row]
    assert ratings.frame.columns == ["user_id", "item_id"]
    assert ratings.titles is not None
    assert ratings.titles.row(0) == (1700, "film 1700")
    assert len(PROTOCOLS["netflix"].interactions(ratings._replace(frame=ratings.frame.vstack(
        pl.DataFrame({"user_id": [9] * 5, "item_id": range(1000, 1005)}, schema=ratings.frame.schema)))).users) == 1  # fmt: skip


def test_compact_ml_1m_form_is_read_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "ml-1m.npz"
    good = {
        "user": np.array([0, 1, 1]),
        "item": np.array([1, 0, 1]),
        "rating": np.array([5.0, 3, 4], np.float32),
        "titles": np.array(["a", "b"]),
    }
    np.savez(path, **good, timestamp=np.arange(3))
    ratings = read("ml-1m", tmp_path)
    assert ratings.frame.rows() == [(0, 1, 5.0), (1, 0, 3.0), (1, 1, 4.0)]
    assert ratings.titles is not None
    assert ratings.titles.rows() == [(0, "a"), (1, "b")]
    for wrong in ({"item": np.array([1, 0, 2])}, {"rating": np.array([5.0, 3, 7])}, {"user": np.array([0])}, {"item": np.array([-1, 0, 1])},
                  {"titles": np.array([{"a": 1}], object)}, {"rating": np.array(["5", "3", "4"])}, {"user": np.zeros((3, 1), int)}):  # fmt: skip
        np.savez(path, **good | wrong)
        with pytest.raises(DropoutError, match="want"):
            read("ml-1m", path)
    np.savez(path, user=good["user"])
    with pytest.raises(DropoutError, match="got user without item, rating, titles"):
        read("ml-1m", path)
    whole = path.read_bytes()
    for broken in (b"", whole[:40], whole[:-30], b"x" * 100):
        path.write_bytes(broken)
        with pytest.raises(DropoutError, match="want an .npz with user, item, rating, titles, got"):
            read("ml-1m", path)


@pytest.mark.parametrize(("name", "at_least", "user_items", "item_users", "held_out"), [("ml-20m", 4, 5, 0, 10_000), ("netflix", 4, 5, 0, 40_000), ("msd", 1, 20, 200, 50_000), ("ml-1m", 4, 5, 0, 750)])  # fmt: skip
def test_table_of_protocols_is_the_published_one(
    name: str, at_least: int, user_items: int, item_users: int, held_out: int
) -> None:
    assert PROTOCOLS[name].settings() == {
        "at_least": at_least,
        "min_user_items": user_items,
        "min_item_users": item_users,
        "held_out_users": held_out,
        "seed": 98765,
    }
