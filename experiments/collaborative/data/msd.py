"""The Taste Profile of the Million Song Dataset: 48 million plays of 384,546 songs by 1,019,318 listeners.

    train_triplets.txt (or .zip)   user, song and number of plays between tabs: 40 hexadecimal digits, SO…, a number
    unique_tracks.txt, if there    track<SEP>song<SEP>artist<SEP>title in UTF-8

McFee, Bertin-Mahieux, Ellis and Lanckriet, The Million Song Dataset Challenge, 2012.
"""

import re
from pathlib import Path

import polars as pl

from experiments.collaborative.data.official_files import (
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

__all__ = ["TRIPLETS", "read_msd"]

TRIPLETS = 48_373_586
HOME = "http://millionsongdataset.com/tasteprofile/"
LINES = Format(
    re.compile(rb"[0-9a-f]{40}\tSO[0-9A-Z]{16}\t[1-9]\d*"),
    "user (40 digits), song (SO…) and plays with tabs between",
    HOME,
)
SCHEMA = {"user_id": pl.String(), "item_id": pl.String(), "weight": pl.Int32()}
VALID = (
    pl.col("user_id").str.contains(r"^[0-9a-f]{40}$")
    & pl.col("item_id").str.contains(r"^SO[0-9A-Z]{16}$")
    & (pl.col("weight") > 0)
)
AS_CATEGORIES = {"user_id": pl.Categorical(), "item_id": pl.Categorical(), "weight": pl.Int32()}


def read_msd(source: str | Path, *, allow_partial: bool = False, progress: Progress | None = None) -> Ratings:
    """Plays, and titles as "artist – title" where unique_tracks.txt lies beside them."""
    with find(source, r"train_triplets\.txt|unique_tracks\.txt", "train_triplets.txt", HOME) as files:
        plays = [file for file in files if file.base != "unique_tracks.txt"]
        if len(plays) != 1:
            raise DropoutError(f"{source}: want one train_triplets.txt there, got {len(plays)}; see {HOME}")
        # A million names as numbers: as text, fifty million rows would fill ten times the memory.
        parts = [parsed(group, LINES, "\t", SCHEMA, VALID).cast(AS_CATEGORIES) for group in blocks(plays, progress)]  # pyright: ignore
        frame = pl.concat(parts) if parts else pl.DataFrame(schema=AS_CATEGORIES)
        check_count(plays[0].name, len(frame), TRIPLETS, allow_partial, HOME)
        tracks = next((file for file in files if file.base == "unique_tracks.txt"), None)
        titles = _titles(tracks) if tracks is not None else None
        return Ratings(frame, titles, tuple((file.base, file.size) for file in files))


def _titles(file: File) -> pl.DataFrame:
    """A song can be on several tracks: the first counts."""
    names: dict[str, str] = {}
    for number, line in text_lines(file, "utf-8"):
        cells = line.split("<SEP>")
        if len(cells) != 4:
            raise DropoutError(
                f"{file.name}, line {number:,}: want track<SEP>song<SEP>artist<SEP>title, got {line[:60]!r}; see {HOME}"
            )
        names.setdefault(cells[1], f"{cells[2]} – {cells[3]}")
    return pl.DataFrame(
        {"item_id": list(names), "title": list(names.values())}, schema={"item_id": pl.String, "title": pl.String}
    )
