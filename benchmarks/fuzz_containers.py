"""Ways to forge what holds other things, tensors and archives, and the strategy that changes one file of an input.

A change takes the files of a valid input, by name, and gives them back with one of them changed: a header that lies about
sizes, a pickle where an array should be, a member that wants out of its folder.
"""

import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np

from benchmarks.fuzz_changes import (
    HOSTILE,
    SIZES,
    WORDS,
    Draw,
    Files,
    Hostile,
    changed_bytes,
    changed_json,
    changed_parquet,
    changed_text,
    changed_tree,
)

__all__ = ["changes"]

KINDS = ("F64", "F32", "F16", "BF16", "I64", "I32", "I8", "U8", "U64", "BOOL", "F8_E4M3", "X", 1)
WIDTHS = {"F64": 8, "I64": 8, "U64": 8, "F16": 2, "BF16": 2, "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1}
DTYPES = ("|O", "<U0", "|V8", "<i8", ">f4", "<f2", "<c16", "<M8[s]", "|b1", "<U9999999", "x", "<u2")
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
OPCODES = (
    b"c", b"os\nsystem\n", b"R", b"(", b"t", b".", b"N", b"]", b"a", b"}", b"\x80\x02", b"0", b"2", b"b", b"S'x'\n", b"I1\n",
    b"i", b"o", b"\x81", b"\x93", b"p0\n", b"g0\n", b"Q", b"P1\n", b"K\x01",
)  # fmt: skip
FORMATS = (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
NOT_FILES = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.REGTYPE)


# ------------------------------------------------------------------------------------------------------------- tensors


def changed_safetensors(draw: Draw, data: bytes) -> bytes:
    """A header that lies about types, shapes, places or its own length."""
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    names = [name for name in header if name != "__metadata__"]
    entry = header[draw(st.sampled_from(names))]
    match draw(st.sampled_from(["dtype", "dtype", "shape", "place", "tree", "length", "rename", "nan", "drop"])):
        case "dtype":
            entry["dtype"] = draw(st.sampled_from(KINDS))
            low, high = entry["data_offsets"]
            entry["shape"] = [(high - low) // WIDTHS.get(entry["dtype"], 4)]
        case "shape":
            entry["shape"] = draw(st.lists(st.sampled_from([*SIZES, -1, 3, 6]), max_size=4))
        case "place":
            entry["data_offsets"] = draw(st.lists(st.sampled_from([*SIZES, -1, 8, 16]), min_size=1, max_size=3))
        case "tree":
            header = changed_tree(draw, header)
        case "length":
            text = json.dumps(header).encode()
            return struct.pack("<Q", draw(st.sampled_from([*SIZES, len(text) + 1, len(text) - 1]))) + text + body
        case "rename":
            header[draw(WORDS)] = header.pop(names[0])
        case "drop":
            header.pop(names[-1])
        case _:
            body = np.full(len(body) // 4, draw(st.sampled_from([np.nan, np.inf, -1.0])), np.float32).tobytes()
            body += bytes(-len(body) % 4)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def changed_npz(draw: Draw, data: bytes) -> bytes:
    """A member whose header lies, holds objects, is missing, or has another name; a zip that says other sizes."""
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        found = {name: packed.read(name) for name in packed.namelist()}
    name = draw(st.sampled_from(sorted(found)))
    match draw(st.sampled_from(["header", "header", "object", "array", "bytes", "rename", "drop", "method", "sizes"])):
        case "header":
            (length,) = struct.unpack("<H", found[name][8:10])
            shape = draw(st.lists(st.sampled_from([0, 1, 3, 13, 2**40, 2**63, -1]), max_size=3).map(tuple) | WORDS)
            said = repr({"descr": draw(st.sampled_from(DTYPES)), "fortran_order": draw(st.booleans()), "shape": shape})
            text = draw(st.sampled_from([said, said, "{" * 200, "1", "{'a'"])).encode("latin-1", "replace")
            found[name] = found[name][:8] + struct.pack("<H", len(text)) + text + found[name][10 + length :]
        case "object":
            made = io.BytesIO()
            np.save(made, np.array([Hostile()], object), allow_pickle=True)
            found[name] = made.getvalue()
        case "array":
            made = io.BytesIO()
            values = draw(st.sampled_from([np.nan, -1, 2.5, 10**9, "text", True, 1j]))
            np.save(made, np.full(draw(st.sampled_from([(), (0,), (13,), (3, 2), (13, 3, 32, 32)])), values))
            found[name] = made.getvalue()
        case "bytes":
            found[name] = changed_bytes(draw, found[name])
        case "rename":
            found[f"x{draw(WORDS)}.npy"] = found.pop(name)
        case "drop":
            del found[name]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", draw(st.sampled_from(METHODS))) as packed:
        for each, content in found.items():
            packed.writestr(each, content)
    return made.getvalue() if draw(st.integers(0, 3)) else _lying_sizes(draw, made.getvalue())


def _lying_sizes(draw: Draw, data: bytes) -> bytes:
    """In the zip's central directory another size, packed or unpacked."""
    at = data.find(b"PK\x01\x02")
    if at < 0:
        return data
    place = at + draw(st.sampled_from([20, 24]))
    return data[:place] + struct.pack("<I", draw(st.sampled_from(SIZES)) % 2**32) + data[place + 4 :]


def changed_torch(draw: Draw, data: bytes) -> bytes:
    """A torch file that holds an object with code, or anything but tensors."""
    import torch

    made = io.BytesIO()
    contents = [Hostile(), [1, 2], {"a": 1}, {"a": Hostile()}, None, torch.zeros(2), {1: torch.zeros(2)}]
    torch.save(draw(st.sampled_from(contents)), made)
    return draw(st.sampled_from([made.getvalue(), HOSTILE, made.getvalue()[:-20]]))


def changed_pickle(draw: Draw, data: bytes) -> bytes:
    """A batch with code in it, or opcodes in any order."""
    codes = st.lists(st.sampled_from(OPCODES), min_size=1, max_size=20).map(b"".join)
    return draw(st.sampled_from([HOSTILE, data[:-1] + HOSTILE]) | codes)


# ------------------------------------------------------------------------------------------------------------ archives


def changed_archive(draw: Draw, data: bytes) -> bytes:
    """Members that want out of the folder, links, devices, false sizes, one twice, an archive in an archive."""
    made = _changed_zip(draw, data) if data.startswith(b"PK") else _changed_tar(draw, data)
    return made if draw(st.booleans()) else changed_bytes(draw, made)


def _changed_zip(draw: Draw, data: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        found = {name: packed.read(name) for name in packed.namelist()}
    made, twin = io.BytesIO(), draw(st.sampled_from(sorted(found)))
    with zipfile.ZipFile(made, "w", draw(st.sampled_from(METHODS))) as out:
        for name, content in found.items():
            others = [name, f"../{name}", f"/tmp/{name}", f"{name}/", "x" * 99] if name == twin else [name]
            out.writestr(draw(st.sampled_from(others)), content)
        out.writestr("bomb.txt", bytes(2_000_000))
    return draw(st.sampled_from([made.getvalue(), _lying_sizes(draw, made.getvalue())]))


def _changed_tar(draw: Draw, data: bytes) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        found = [(each, (tar.extractfile(each) or io.BytesIO()).read()) for each in tar if each.isreg()]
    made, twin = io.BytesIO(), draw(st.integers(0, len(found)))
    mode = draw(st.sampled_from(["w", "w:gz", "w:bz2", "w:xz"]))
    with tarfile.open(fileobj=made, mode=mode, format=draw(st.sampled_from(FORMATS))) as out:
        for number, (each, content) in enumerate(found):
            each.size = len(content)
            out.addfile(each, io.BytesIO(content))
            if number == twin:
                each.name = draw(
                    st.sampled_from([f"../{each.name}", f"/tmp/{each.name}", "x" * 300, each.name, "in.tar"])
                )
                each.type = draw(st.sampled_from(NOT_FILES))
                each.linkname = draw(st.sampled_from(["/etc/hostname", "..", each.name]))
                out.addfile(each, io.BytesIO(content))
    return made.getvalue()


INSIDE: dict[str, Callable[[Draw, bytes], bytes]] = {
    ".json": changed_json, ".csv": changed_text, ".tsv": changed_text, ".txt": changed_text, ".dat": changed_text,
    ".parquet": changed_parquet, ".safetensors": changed_safetensors, ".npz": changed_npz, ".pth": changed_torch,
    "_batch": changed_pickle, "_1": changed_pickle, ".zip": changed_archive, ".gz": changed_archive, ".tar": changed_archive,
}  # fmt: skip


@st.composite
def changes(draw: Draw, files: Files) -> Files:
    """The files with one changed, removed, emptied or replaced by another."""
    name = draw(st.sampled_from(sorted(files)))
    inside = next((way for ending, way in INSIDE.items() if name.endswith(ending)), changed_bytes)
    match draw(st.sampled_from(["inside", "inside", "inside", "bytes", "bytes", "other"])):
        case "inside":
            return files | {name: inside(draw, files[name])}
        case "bytes":
            return files | {name: changed_bytes(draw, files[name])}
        case _:
            other = draw(st.sampled_from([b"", b"\0" * 100, HOSTILE, b"PK\x03\x04", b"PAR1", b"{}", *files.values()]))
            return files | {name: other}
