"""Archives are read within bounds whatever they state; nothing is extracted, followed or unpickled."""

import io
import os
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from experiments import archives
from experiments.archives import members, read_npz
from lbdrop.errors import DropoutError


def tar_of(path: Path, *infos: tuple[tarfile.TarInfo, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # pyright: ignore[reportCallIssue, reportArgumentType]
        for info, content in infos:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def info(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


def peak(call: Callable[[], object]) -> int:
    """Most bytes that Python and numpy held at once; the call must be refused."""
    tracemalloc.start()
    try:
        with pytest.raises(DropoutError):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# ----------------------------------------------------------------------------------------------------------- zip, tar


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_members_are_regular_files_and_nothing_is_extracted(tmp_path: Path, mode: str) -> None:
    path = tar_of(
        tmp_path / "a.tar", (info("../up.txt"), b"up"), (info("/tmp/absolute.txt"), b"root"),
        (info("link", tarfile.SYMTYPE, "/etc/hostname"), b""), (info("hard", tarfile.LNKTYPE, "../up.txt"), b""),
        (info("device", tarfile.CHRTYPE), b""), (info("pipe", tarfile.FIFOTYPE), b""), (info("folder", tarfile.DIRTYPE), b""),
        mode=mode,
    )  # fmt: skip
    with members(path) as files:
        assert {one.name: one.open().read() for one in files} == {"../up.txt": b"up", "/tmp/absolute.txt": b"root"}
    assert os.listdir(tmp_path) == ["a.tar"]


def test_tar_in_a_tar_is_opened_one_level_deep(tmp_path: Path) -> None:
    inner = tar_of(tmp_path / "inner.tar", (info("deep.txt"), b"deep")).read_bytes()
    middle = tar_of(tmp_path / "middle.tar", (info("inner.tar"), inner)).read_bytes()
    with members(tar_of(tmp_path / "a.tar", (info("middle.tar"), middle))) as files:
        assert [one.name for one in files] == ["middle.tar/inner.tar"]
    with members(tmp_path / "middle.tar") as files:
        assert [(one.name, one.open().read()) for one in files] == [("inner.tar/deep.txt", b"deep")]


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE], ids=["GNU", "pax"])
def test_headers_of_a_tar_cannot_ask_for_gigabytes(tmp_path: Path, kind: bytes) -> None:
    head = info("long", kind)
    head.size = 8**11 - 1
    path = tmp_path / "a.tar"
    path.write_bytes(head.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20))

    def read() -> None:
        with members(path):
            pass

    assert peak(read) < 16 << 20


@pytest.mark.parametrize("bound", ["MAX_FILES", "MAX_TAR"])
def test_tar_beyond_its_bounds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    path = tar_of(tmp_path / "a.tar.gz", *((info(f"{i}.txt"), bytes(2000)) for i in range(5)), mode="w:gz")
    monkeypatch.setattr(archives, bound, 4 if bound == "MAX_FILES" else 6000)
    with (
        pytest.raises(DropoutError, match=r"a.tar.gz: want a whole zip or tar, got more than .*; fetch it again"),
        members(path),
    ):
        pass


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_in_an_unbounded_compression_is_refused(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as made:
        made.writestr("a.txt", bytes(1000))
    with (
        pytest.raises(DropoutError, match="a.txt in a compression other than deflate"),
        members(tmp_path / "a.zip") as files,
    ):
        files[0].open()


def with_false_size(path: Path, offset: int, value: int) -> Path:
    """The zip with another number in the directory at its end: 20 for the packed size, 24 for the unpacked one."""
    data = path.read_bytes()
    place = data.index(b"PK\x01\x02") + offset
    path.write_bytes(data[:place] + struct.pack("<I", value) + data[place + 4 :])
    return path


def test_zip_that_states_an_impossible_size_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a.txt", bytes(1000))
    path = with_false_size(tmp_path / "a.zip", 24, 2**32 - 2)
    with pytest.raises(DropoutError, match="a.txt of 4,294,967,294 bytes in"), members(path) as files:
        files[0].open()


def test_reading_stops_at_the_size_that_a_zip_states(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a.txt", bytes(100_000))
    with (
        pytest.raises(DropoutError, match="want a whole zip or tar"),
        members(with_false_size(tmp_path / "a.zip", 24, 10)) as files,
    ):
        assert len(files[0].open().read()) <= 10  # and its checksum does not fit


# ---------------------------------------------------------------------------------------------------------------- npz


def npz_with(path: Path, header: str, body: bytes = b"", method: int = zipfile.ZIP_DEFLATED) -> Path:
    text = header.encode()
    with zipfile.ZipFile(path, "w", method) as made:
        made.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body)
    return path


@pytest.mark.parametrize(
    ("array", "fortran"),
    [(np.arange(12.0).reshape(3, 4), True), (np.array(["é", "lang"]), False), (np.zeros((0, 3)), False)],
)
def test_arrays_are_read_as_they_were_saved(tmp_path: Path, array: np.ndarray, fortran: bool) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.asfortranarray(array) if fortran else array, y=np.float32(2.5))
    arrays = read_npz(tmp_path / "a.npz")
    assert arrays.keys() == {"x", "y"}
    assert np.array_equal(arrays["x"], array)
    assert arrays["y"].shape == ()
    assert arrays["x"].flags.writeable


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000,)}", "in 800 bytes"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (9223372036854775807, 9223372036854775807)}", "in 800 bytes"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (-100,)}", "in 800 bytes"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (50,)}", "in 800 bytes"),
        ("{'descr': '<U99999999', 'fortran_order': False, 'shape': (100,)}", "in 800 bytes"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (100,)}", "Object arrays"),
        ("{'descr': '<U0', 'fortran_order': False, 'shape': (10000000000000,)}", "x.npy of"),
        ("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (100,)}", "x.npy of"),
        ("{'descr': '<f8'}", "correct keys"),
        ("{" * 500, "."),
        ("__import__('os').mkdir('was here')", "."),
    ],
)  # fmt: skip
def test_false_header_is_refused_before_memory_is_taken(tmp_path: Path, header: str, message: str) -> None:
    path = npz_with(tmp_path / "a.npz", header, bytes(800))
    with pytest.raises(DropoutError, match=message):
        read_npz(path)
    assert peak(lambda: read_npz(path)) < 4 << 20
    assert os.listdir(tmp_path) == ["a.npz"]


def test_bomb_is_refused_by_its_stated_and_by_its_real_size(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(4_000_000), y=np.zeros(2))
    with pytest.raises(DropoutError, match=r"arrays of 32,000,\d+ bytes where at most 1,000,000 are allowed"):
        read_npz(tmp_path / "a.npz", largest=1_000_000)
    assert read_npz(tmp_path / "a.npz", ["y"], largest=1_000_000)["y"].tolist() == [0, 0]
    assert peak(lambda: read_npz(with_false_size(tmp_path / "a.npz", 24, 900), ["x"])) < 4 << 20


class Hostile:
    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.mark),))


def test_pickle_in_an_npz_does_not_run(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([Hostile(tmp_path / "was here")], object))
    with pytest.raises(DropoutError, match="Object arrays in x.npy, which could run code"):
        read_npz(tmp_path / "a.npz")
    assert os.listdir(tmp_path) == ["a.npz"]


def test_missing_array_is_an_error_that_names_the_present_ones(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **{"x\n": np.zeros(1), "z": np.zeros(1)})  # pyright: ignore[reportArgumentType]
    with pytest.raises(DropoutError, match=r"x\\n, z without y") as error:
        read_npz(tmp_path / "a.npz", ["y"])
    assert "\n" not in str(error.value)
