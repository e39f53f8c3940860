"""MovieLens: a million ratings of 2003, and twenty million of 2015.

    ml-20m.zip   ratings.csv: a header, then userId,movieId,rating,timestamp; ratings 0.5, 1.0, … 5.0
                 movies.csv: a header, then movieId,title,genres, in UTF-8, titles with commas in quotes
    ml-1m.zip    ratings.dat: UserID::MovieID::Rating::Timestamp; ratings 1 … 5
                 movies.dat: MovieID::Title::Genres, in Latin-1
    ml-1m.npz    the compact form: arrays user, item, rating, timestamp (n,) and titles (items,), numbered by ``item``;
                 its users are numbered in another order than GroupLens's, so its split is another one

Harper and Konstan, The MovieLens Datasets: History and Context, 2015.
"""

import csv
import re
from pathlib import Path

import numpy as np
import polars as pl

from experiments.collaborative.data.npz import arrays
from experiments.collaborative.data.official_files import (
    Block,
    File,
    Format,
    Progress,
    Ratings,
    blocks,
    check_count,
    find,
    parsed,
    text_lines,
)
from lbdrop.errors import DropoutError

__all__ = ["ML_1M_RATINGS", "ML_20M_RATINGS", "read_ml_1m", "read_ml_20m"]

ML_20M_RATINGS, ML_1M_RATINGS = 20_000_263, 1_000_209
ML_20M_HOME = "https://grouplens.org/datasets/movielens/20m/"
ML_1M_HOME = "https://grouplens.org/datasets/movielens/1m/"
HEADER, MOVIES_HEADER = b"userId,movieId,rating,timestamp", "movieId,title,genres"
CSV = Format(
    re.compile(rb"\d+,\d+,(?:0\.5|[1-4](?:\.[05])?|5(?:\.0)?),\d+"),
    "userId,movieId,rating,timestamp with a rating from 0.5 to 5 in halves",
    ML_20M_HOME,
)
DAT = Format(
    re.compile(rb"\d+::\d+::[1-5]::\d+"), "UserID::MovieID::Rating::Timestamp with a rating from 1 to 5", ML_1M_HOME
)
SCHEMA = {"user_id": pl.Int32(), "item_id": pl.Int32(), "weight": pl.Float32(), "time": pl.Int64()}
RATING = pl.col("weight")
VALID = (pl.col("user_id") > 0) & (pl.col("item_id") > 0) & (pl.col("time") >= 0)


def read_ml_20m(source: str | Path, *, allow_partial: bool = False, progress: Progress | None = None) -> Ratings:
    """ML-20M's ratings and titles from its zip or its folder."""
    valid = VALID & RATING.is_between(0.5, 5) & ((RATING * 2).round() == RATING * 2)
    with find(source, r"ratings\.csv|movies\.csv", "ratings.csv of MovieLens-20M", ML_20M_HOME) as files:
        ratings = _the(files, "ratings.csv", source, ML_20M_HOME)
        parts = []
        for group in blocks([ratings], progress):
            if group[0].line == 1:
                group[0] = _without_header(group[0])
            parts.append(parsed(group, CSV, ",", SCHEMA, valid).drop("time"))
        frame = _whole(parts, ratings, ML_20M_RATINGS, allow_partial, ML_20M_HOME)
        movies = next((file for file in files if file.base == "movies.csv"), None)
        return Ratings(frame, _csv_titles(movies) if movies is not None else None, _sizes(files))


def read_ml_1m(source: str | Path, *, allow_partial: bool = False, progress: Progress | None = None) -> Ratings:
    """ML-1M's ratings and titles from its zip, its folder, or the compact .npz."""
    wanted = r"ratings\.dat|movies\.dat|ml-1m\.npz"
    with find(source, wanted, "ratings.dat of MovieLens-1M, or ml-1m.npz", ML_1M_HOME) as files:
        compact = next((file for file in files if file.base.endswith(".npz")), None)
        if compact is not None and (Path(source).suffix == ".npz" or not any(f.base == "ratings.dat" for f in files)):
            return _from_npz(compact, allow_partial)
        ratings = _the(files, "ratings.dat", source, ML_1M_HOME)
        valid = VALID & RATING.is_in([1.0, 2.0, 3.0, 4.0, 5.0])
        groups = blocks([ratings], progress)
        parts = [parsed(group, DAT, "\t", SCHEMA, valid, rewrite=(b"::", b"\t")).drop("time") for group in groups]
        frame = _whole(parts, ratings, ML_1M_RATINGS, allow_partial, ML_1M_HOME)
        movies = next((file for file in files if file.base == "movies.dat"), None)
        return Ratings(frame, _dat_titles(movies) if movies is not None else None, _sizes(files))


def _the(files: list[File], name: str, source: str | Path, home: str) -> File:
    found = [file for file in files if file.base == name]
    if len(found) != 1:
        raise DropoutError(f"{source}: want one {name} there, got {len(found)}; see {home}")
    return found[0]


def _sizes(files: list[File]) -> tuple[tuple[str, int], ...]:
    return tuple((file.base, file.size) for file in files)


def _without_header(block: Block) -> Block:
    header, _, rest = block.data.partition(b"\n")
    if header.strip() != HEADER:
        shown = header[:60].decode("utf-8", "replace")
        raise DropoutError(f"{block.file}, line 1: want the header {HEADER.decode()}, got {shown!r}; see {ML_20M_HOME}")
    return Block(block.file, 2, rest)


def _whole(parts: list[pl.DataFrame], file: File, wanted: int, allow_partial: bool, home: str) -> pl.DataFrame:
    frame = pl.concat(parts) if parts else pl.DataFrame(schema=SCHEMA).drop("time")
    check_count(file.name, len(frame), wanted, allow_partial, home)
    return frame


def _csv_titles(file: File) -> pl.DataFrame:
    lines = list(text_lines(file, "utf-8"))
    if not lines or lines[0][1] != MOVIES_HEADER:
        raise DropoutError(
            f"{file.name}, line 1: want the header {MOVIES_HEADER}, got {lines[0][1][:60] if lines else ''!r}"
        )
    rows = zip((number for number, _ in lines[1:]), csv.reader(line for _, line in lines[1:]), strict=False)
    return _titles(file, [(number, row[0], row[1] if len(row) == 3 else None) for number, row in rows], MOVIES_HEADER)


def _dat_titles(file: File) -> pl.DataFrame:
    split = ((number, line.split("::")) for number, line in text_lines(file, "latin-1"))
    return _titles(file, [(n, row[0], row[1] if len(row) == 3 else None) for n, row in split], "MovieID::Title::Genres")


def _titles(file: File, rows: list[tuple[int, str, str | None]], words: str) -> pl.DataFrame:
    for number, movie, title in rows:
        if not movie.isdecimal() or title is None:
            raise DropoutError(f"{file.name}, line {number:,}: want {words}, got movie {movie[:40]!r}; fetch it again")
    ids = pl.Series("item_id", [int(movie) for _, movie, _ in rows], dtype=pl.Int32, strict=False)
    return pl.DataFrame({"item_id": ids, "title": [title for _, _, title in rows]})


def _from_npz(file: File, allow_partial: bool) -> Ratings:
    found = arrays(file, {"user": "iu", "item": "iu", "rating": "fiu", "titles": "U"})
    user, item, rating, titles = (found[name] for name in ("user", "item", "rating", "titles"))
    good = len(user) == len(item) == len(rating) and (not len(item) or (item.min() >= 0 and item.max() < len(titles)))
    if not good or not np.isin(rating, (1, 2, 3, 4, 5)).all():
        raise DropoutError(
            f"{file.name}: want user, item and rating of one length, items below {len(titles):,} and ratings 1 to 5, got"
            f" {len(user):,}, {len(item):,} and {len(rating):,}, or numbers out of range; make it again"
        )
    check_count(file.name, len(user), ML_1M_RATINGS, allow_partial, ML_1M_HOME)
    frame = pl.DataFrame({"user_id": user, "item_id": item, "weight": rating.astype(np.float32)})
    names = pl.DataFrame({"item_id": np.arange(len(titles), dtype=item.dtype), "title": titles.tolist()})
    return Ratings(frame, names, _sizes([file]), "users are numbered in another order than in the official file")
