"""The Netflix Prize: 100 million ratings of 17,770 movies by 480,189 people, 1999 to 2005.

    training_set/mv_0000001.txt, …   a file a movie: "1:", then user,rating,date a line; ratings 1 … 5
    training_set.tar                 these files, also inside nf_prize_dataset.tar.gz
    combined_data_1.txt, … _4.txt    the same files one after the other, as on Kaggle; also in a zip
    movie_titles.txt (or .csv)       movie,year,title in Latin-1; titles have commas, a year can be NULL
    netflix.npz                      the compact form of likes alone, see below

The compact form has the likes (4 and 5) of users with at least 5 of them. A row's items, numbered by popularity, are
sorted and stored as gaps, the first as itself: arrays count (users,) of each row's items, low and high (likes,) bytes of
the gaps, movie_id and titles (items,). Users are numbered in order of Netflix's ids, so the same
likes in either form give the same split.

Bennett and Lanning, The Netflix Prize, KDD Cup 2007.
"""

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

__all__ = ["RATINGS", "read_netflix"]

RATINGS, LIKES, COMPACT_LIKES = 100_480_507, 56_880_037, 56_634_105
HOME = "https://archive.org/details/nf_prize_dataset.tar"
FILES = r"mv_\d{7}\.txt|combined_data_\d\.txt|movie_titles\.(?:txt|csv)|netflix\.npz"
LINES = Format(
    re.compile(rb"[1-9]\d{0,4}:|[1-9]\d{0,6},[1-5],\d{4}-\d\d-\d\d"),
    "movie: or user,rating,date with a rating 1 to 5",
    HOME,
)
SCHEMA = {"user": pl.String(), "rating": pl.UInt8(), "date": pl.String()}
IS_MOVIE = pl.col("user").str.ends_with(":")
NUMBER = pl.col("user").str.strip_suffix(":").cast(pl.Int16, strict=False)
VALID = pl.when(IS_MOVIE).then(pl.col("rating").is_null() & NUMBER.is_between(1, 17_770)).otherwise(
    pl.col("rating").is_between(1, 5)
    & (pl.col("date").str.len_bytes() == 10)
    & pl.col("user").cast(pl.Int32, strict=False).is_between(1, 9_999_999)
)  # fmt: skip


def read_netflix(source: str | Path, *, allow_partial: bool = False, progress: Progress | None = None) -> Ratings:
    """Ratings and titles from the folder, from one of the archives, or from the compact .npz."""
    described = "mv_*.txt or combined_data_*.txt of the Netflix Prize, or netflix.npz"
    with find(source, FILES, described, HOME) as files:
        compact = next((file for file in files if file.base.endswith(".npz")), None)
        combined = [file for file in files if file.base.startswith("combined_data_")]
        data = combined or [file for file in files if file.base.startswith("mv_")]
        if compact is not None and (Path(source).suffix == ".npz" or not data):
            return _from_npz(compact, allow_partial)
        if not data:
            raise DropoutError(f"{source}: want mv_*.txt or combined_data_*.txt there, got titles alone; see {HOME}")
        titles = next((file for file in files if file.base.startswith("movie_titles")), None)
        return _from_text(source, data, titles, allow_partial, progress)


def _from_text(
    source: str | Path, data: list[File], titles: File | None, allow_partial: bool, progress: Progress | None
) -> Ratings:
    parts, movie = [], 0  # a movie can go on in the next block
    for group in blocks(data, progress):
        _check_starts(group)
        table = parsed(group, LINES, ",", SCHEMA, VALID, rewrite=(b":\n", b":,,\n"))
        numbered = table.with_columns(item_id=pl.when(IS_MOVIE).then(NUMBER).forward_fill().fill_null(movie))
        movie = numbered["item_id"][-1]
        parts.append(
            numbered.filter(~IS_MOVIE).select(
                pl.col("user").cast(pl.Int32).alias("user_id"), "item_id", pl.col("rating").alias("weight")
            )
        )
    frame = (
        pl.concat(parts)
        if parts
        else pl.DataFrame(schema={"user_id": pl.Int32, "item_id": pl.Int16, "weight": pl.UInt8})
    )
    check_count(str(source), len(frame), RATINGS, allow_partial, HOME)
    used = data if titles is None else [*data, titles]
    return Ratings(
        frame, _titles(titles) if titles is not None else None, tuple((file.base, file.size) for file in used)
    )


def _check_starts(group: list[Block]) -> None:
    """A file that does not begin with its movie would continue that of the file before."""
    for block in group:
        first = block.data[:20].split(b"\n")[0].strip()
        if block.line == 1 and not re.fullmatch(rb"[1-9]\d{0,4}:", first):
            raise DropoutError(
                f"{block.file}, line 1: want a movie such as '1:', got {first.decode('latin-1')!r}; see {HOME}"
            )


def _titles(file: File) -> pl.DataFrame:
    ids, names = [], []
    for number, line in text_lines(file, "latin-1"):
        cells = line.split(",", 2)
        if len(cells) != 3 or not re.fullmatch(r"[1-9]\d{0,4}", cells[0]):
            raise DropoutError(f"{file.name}, line {number:,}: want movie,year,title, got {line[:60]!r}; see {HOME}")
        ids.append(int(cells[0]))
        names.append(cells[2])
    return pl.DataFrame({"item_id": pl.Series(ids, dtype=pl.Int32), "title": pl.Series(names, dtype=pl.String)})


def _from_npz(file: File, allow_partial: bool) -> Ratings:
    found = arrays(file, {"count": "iu", "low": "iu", "high": "iu", "movie_id": "iu", "titles": "U"})
    count, low, high, movies = (found[name] for name in ("count", "low", "high", "movie_id"))
    if len(low) != len(high) or count.sum(dtype=np.int64) != len(low) or len(movies) != len(found["titles"]):
        raise DropoutError(
            f"{file.name}: want low and high for each of {count.sum(dtype=np.int64):,} likes and a title for each movie_id,"
            f" got {len(low):,}, {len(high):,}, {len(movies):,} and {len(found['titles']):,}; make it again"
        )
    count = count.astype(np.int64)
    gaps = low.astype(np.int32)
    gaps += high.astype(np.int32) << 8
    item = _from_gaps(gaps, count)
    if len(item) and (item.min() < 0 or item.max() >= len(movies)):
        raise DropoutError(f"{file.name}: want items below {len(movies):,}, got up to {item.max():,}; make it again")
    if len(item) != COMPACT_LIKES:
        check_count(file.name, len(item), LIKES, allow_partial, HOME)
    note = "likes alone; the two most rated movies are missing" if len(item) == COMPACT_LIKES else "likes alone"
    users = np.repeat(np.arange(len(count), dtype=np.int32), count)
    frame = pl.DataFrame({"user_id": users, "item_id": movies.astype(np.int32)[item]})
    titles = pl.DataFrame({"item_id": movies.astype(np.int32), "title": found["titles"].tolist()})
    return Ratings(frame, titles, ((file.base, file.size),), note)


def _from_gaps(gaps: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Running sums that start anew with each row."""
    total = np.cumsum(gaps, dtype=np.int64)
    start = np.cumsum(count) - count
    before = np.where(start > 0, total[np.maximum(start - 1, 0)], 0) if len(total) else np.zeros(len(count), np.int64)
    total -= np.repeat(before, count)
    return total.astype(np.int32)
