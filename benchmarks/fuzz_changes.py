"""Ways to damage or forge bytes, JSON, text and tables, as functions of hypothesis' ``draw`` and a valid content.

Structured changes keep the format whole, so that what is wrong reaches the code behind the parser: a cell that is no number, a
name twice, a column of another type.
"""

import hashlib
import io
import json
import os
import pickle
import struct
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import hypothesis.strategies as st

from lbdrop.io.manifest import sealed

__all__ = [
    "CANARY", "HOSTILE", "SIZES", "WORDS", "Draw", "Files", "Hostile", "changed_bytes", "changed_json", "changed_parquet",
    "changed_text", "changed_tree", "resealed",
]  # fmt: skip


class Files(dict[str, bytes]):
    """Contents by name."""

    def __repr__(self) -> str:
        return ", ".join(f"{name} of {len(content):,} bytes" for name, content in self.items())

    def __or__(self, other: Any) -> "Files":
        return Files({**self, **other})


Draw = Callable[[st.SearchStrategy[Any]], Any]

CANARY = f"{tempfile.gettempdir()}/lbdrop-fuzz-was-here-{os.getpid()}"
"""Whatever runs the code in a forged file makes this folder."""


class Hostile:
    """Makes the folder if it is unpickled as pickles usually are."""

    def __reduce__(self) -> tuple[object, ...]:
        return (os.makedirs, (CANARY,))


HOSTILE = pickle.dumps({b"data": Hostile(), b"labels": [0]}, protocol=2)
SIZES = [0, 1, 2, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1]
NUMBERS = st.sampled_from(
    [0, -1, 1, 2**31, 2**63, 10**19, 0.5, -0.0, 1e308, -1e308, 1e-320, float("inf"), float("nan")]
)
WORDS = st.sampled_from(
    ["", " ", "x", "nan", "-1", "1e999", "9" * 30, "\0", "é" * 50, "<script>alert(1)</script>", "../../etc/passwd", "os.path",
     "__import__('os')", "a,b", '"', "\n", "x" * 5000, "{}", "ease", "float64", "None"]
)  # fmt: skip
LEAVES = NUMBERS | WORDS | st.sampled_from([None, True, False]) | st.sampled_from(SIZES)
NONSENSE = st.recursive(
    LEAVES, lambda of: st.lists(of, max_size=3) | st.dictionaries(WORDS, of, max_size=3), max_leaves=6
)


# -------------------------------------------------------------------------------------------------------------- seals


def resealed(files: Mapping[str, bytes]) -> Files:
    """With new checksums and a new seal wherever a folder has one, as a forger would."""
    made = Files(files)
    for name, content in files.items():
        folder, _, last = name.rpartition("/")
        if last not in ("model.json", "manifest.json", "record.json"):
            continue
        try:
            header = json.loads(content)
            listed = {each: files[f"{folder}/{each}" if folder else each] for each in header["files"]}
            header["files"] = {
                each: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for each, data in listed.items()
            }
            made[name] = sealed(header)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # what is no header any more stays as it is
    return made


# ---------------------------------------------------------------------------------------------------------- any bytes


def changed_bytes(draw: Draw, data: bytes) -> bytes:
    """One to three of: flipped bits, a cut, something put in, taken out, doubled, swapped, or overwritten by a number."""
    for _ in range(draw(st.integers(1, 3))):
        place, other = (draw(st.integers(0, max(len(data) - 1, 0))) for _ in range(2))
        low, high = min(place, other), max(place, other)
        match draw(st.sampled_from(["flip", "cut", "insert", "remove", "double", "swap", "number", "zero"])):
            case "flip":
                byte = bytes([data[place] ^ (1 << draw(st.integers(0, 7)))]) if data else b""
                data = data[:place] + byte + data[place + 1 :]
            case "cut":
                data = data[:place]
            case "insert":
                data = data[:place] + draw(st.binary(max_size=20)) + data[place:]
            case "remove":
                data = data[:low] + data[min(high, low + 64) :]
            case "double":
                data = data[:high] + data[low:high] + data[high:]
            case "swap":
                data = data[high:] + data[low:high] + data[:low]
            case "number":
                width = draw(st.sampled_from(["<I", "<Q", ">I"]))
                packed = struct.pack(width, draw(st.sampled_from(SIZES)) % 2 ** (8 * struct.calcsize(width)))
                data = data[:place] + packed + data[place + len(packed) :]
            case _:
                data = data[:low] + bytes(min(high - low, 64)) + data[min(high, low + 64) :]
    return data


# ---------------------------------------------------------------------------------------------------------------- JSON


def changed_json(draw: Draw, data: bytes) -> bytes:
    """Somewhere in the tree a value of another kind, none, one more, a name twice, or far too deep a nest."""
    return draw(st.sampled_from([_deep, _doubled, _huge, _plain_json]))(draw, data)


def _plain_json(draw: Draw, data: bytes) -> bytes:
    tree = json.loads(data)
    for _ in range(draw(st.integers(1, 2))):
        tree = changed_tree(draw, tree)
    return json.dumps(tree).encode()


def _deep(draw: Draw, data: bytes) -> bytes:
    opened = draw(st.sampled_from([b"[", b'{"a":', b'[{"a":']))
    return opened * draw(st.sampled_from([10, 2000, 200_000])) + data


def _doubled(draw: Draw, data: bytes) -> bytes:
    name = draw(st.sampled_from(sorted(json.loads(data))))
    return data.rstrip().rstrip(b"}") + f',"{name}": {json.dumps(draw(NONSENSE))}}}'.encode()


def _huge(draw: Draw, data: bytes) -> bytes:
    places = [place for place, byte in enumerate(data) if 48 <= byte <= 57]
    place = draw(st.sampled_from(places or [0]))
    return data[:place] + draw(st.sampled_from([b"9" * 400, b"9" * 5000, b"1e999", b"-", b"0x1"])) + data[place + 1 :]


def changed_tree(draw: Draw, tree: Any) -> Any:
    """The same tree with one place changed."""
    if isinstance(tree, dict | list) and tree and draw(st.integers(0, 5)):
        keys = sorted(tree, key=str) if isinstance(tree, dict) else range(len(tree))
        key = draw(st.sampled_from(keys))
        copy = dict(tree) if isinstance(tree, dict) else list(tree)
        match draw(st.sampled_from(["below", "below", "below", "replace", "remove", "more"])):
            case "below":
                copy[key] = changed_tree(draw, tree[key])
            case "replace":
                copy[key] = draw(NONSENSE)
            case "remove":
                del copy[key]
            case _:
                if isinstance(copy, dict):
                    copy[draw(WORDS)] = draw(NONSENSE)
                else:
                    copy.insert(key, draw(NONSENSE))
        return copy
    return draw(NONSENSE)


# -------------------------------------------------------------------------------------------------------- tables, texts


def changed_text(draw: Draw, data: bytes) -> bytes:
    """A cell, a line, a separator, an end of line or the encoding is another."""
    lines = data.split(b"\n")
    place = draw(st.integers(0, max(len(lines) - 2, 0)))
    separator = next((s for s in (b"::", b"<SEP>", b"\t", b",") if s in lines[place]), b",")
    cells = lines[place].split(separator)
    match draw(
        st.sampled_from(["cell", "cell", "cell", "fewer", "more", "line", "long", "quote", "bom", "utf-16", "cr"])
    ):
        case "cell":
            cells[draw(st.integers(0, len(cells) - 1))] = str(draw(LEAVES)).encode("utf-8", "replace")
        case "fewer":
            del cells[draw(st.integers(0, len(cells) - 1))]
        case "more":
            cells.insert(0, draw(st.binary(max_size=8)))
        case "line":
            lines.insert(place, draw(st.binary(max_size=30)))
        case "long":
            cells[-1] = b"9" * 100_000
        case "quote":
            cells[0] = b'"' + cells[0]
        case "bom":
            return b"\xef\xbb\xbf" + data
        case "utf-16":
            return data.decode("latin-1").encode("utf-16")
        case _:
            return data.replace(b"\n", b"\r")
    lines[place] = separator.join(cells)
    return b"\n".join(lines)


def changed_parquet(draw: Draw, data: bytes) -> bytes:
    """The columns with other names, types or values, in a whole file."""
    import polars as pl

    table = pl.read_parquet(io.BytesIO(data))
    column = draw(st.sampled_from(table.columns))
    kinds = [pl.Float32, pl.Boolean, pl.List(pl.Int64), pl.Struct({"a": pl.Int8}), pl.Null, pl.Datetime, pl.Binary, pl.Date,
             pl.Decimal(20, 2), pl.Categorical, pl.UInt64, pl.Int8, pl.String, pl.Duration, pl.Time]  # fmt: skip
    match draw(st.sampled_from(["type", "type", "rename", "drop", "null", "empty", "repeat", "value", "shuffle"])):
        case "type":
            kind = draw(st.sampled_from(kinds))
            values = [None] * len(table)
            try:
                table = table.with_columns(pl.col(column).cast(kind, strict=False))
            except pl.exceptions.PolarsError:
                table = table.with_columns(pl.Series(column, values, dtype=kind))
        case "rename":
            table = table.rename({column: draw(WORDS)})
        case "drop":
            table = table.drop(column)
        case "null":
            table = table.with_columns(pl.when(pl.int_range(pl.len()) > 0).then(pl.col(column)))
        case "empty":
            table = table.head(0)
        case "repeat":
            table = pl.concat([table, table])
        case "value":
            found = draw(NUMBERS if table[column].dtype.is_float() else WORDS)
            table = table.with_columns(
                pl.when(pl.int_range(pl.len()) > 0).then(pl.col(column)).otherwise(pl.lit(found))
            )
        case _:
            table = table.reverse()
    made = io.BytesIO()
    table.write_parquet(made)
    return made.getvalue()
