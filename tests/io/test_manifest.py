"""A sealed folder shows any change of its files, whatever they are replaced by."""

import json
import os
import random
from pathlib import Path

import pytest

from lbdrop.errors import DropoutError
from lbdrop.io.manifest import Kind, is_ours, read_header, write_header

KIND = Kind("test kind", "head.json", r"[ab]\.bin", format=3, oldest=2, what="a test folder", again="make it again")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "folder"
    place.mkdir()
    (place / "a.bin").write_bytes(bytes(range(256)))
    (place / "b.bin").write_bytes(b"b")
    write_header(place, KIND, {"name": "é", "numbers": [1, 2.5, None]})
    return place


def test_header_is_read_back_with_versions_and_files(folder: Path) -> None:
    header = read_header(folder, KIND)
    assert header["kind"] == "test kind"
    assert (header["format"], header["name"], header["numbers"]) == (3, "é", [1, 2.5, None])
    assert {"lbdrop", "torch"} <= header["versions"].keys()
    assert header["files"].keys() == {"a.bin", "b.bin"}
    assert is_ours(folder, KIND)


def test_every_flipped_bit_is_seen(folder: Path) -> None:
    draw = random.Random(0)
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for place in sorted(draw.sample(range(len(whole)), min(len(whole), 150))):
            changed = bytearray(whole)
            changed[place] ^= 1 << draw.randrange(8)
            path.write_bytes(changed)
            with pytest.raises(DropoutError) as error:
                read_header(folder, KIND)
            assert "\n" not in str(error.value)
        path.write_bytes(whole)
    read_header(folder, KIND)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda f: (f / "a.bin").unlink(), "got no a.bin there; make it again"),
        (lambda f: (f / "a.bin").write_bytes(b"short"), "want 256 bytes, got 5: cut off, or of another folder"),
        (lambda f: (f / "a.bin").write_bytes(bytes(256)), "its SHA-256 differs"),
        (lambda f: os.truncate(f / "head.json", 100), "want JSON"),
        (lambda f: (f / "head.json").write_text("{}"), "want a test folder, got something else"),
        (lambda f: (f / "head.json").unlink(), "got no head.json there"),
    ],
)  # fmt: skip
def test_damage_is_named(folder: Path, harm: object, said: str) -> None:
    harm(folder)  # type: ignore[operator]
    with pytest.raises(DropoutError, match=said):
        read_header(folder, KIND)


def test_file_of_another_folder_is_seen(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.bin").write_bytes(bytes(256))
    write_header(other, KIND, {})
    (other / "b.bin").write_bytes((folder / "b.bin").read_bytes())
    with pytest.raises(DropoutError, match="want only what was saved together, got a file of another folder"):
        read_header(other, KIND)


@pytest.mark.parametrize("name", ["a.bin", "head.json"])
def test_special_files_are_refused_before_they_are_read(folder: Path, tmp_path: Path, name: str) -> None:
    path, outside = folder / name, tmp_path / "outside"
    outside.write_bytes(path.read_bytes())

    def sparse() -> None:
        path.touch()
        os.truncate(path, 1 << 40)

    harms = {
        "got a FIFO": lambda: os.mkfifo(path),  # which would be waited for
        "got a device": lambda: path.symlink_to("/dev/zero"),  # which never ends
        "got a folder": path.mkdir,
        "got a link to .*outside": lambda: path.symlink_to(outside),
        "1,099,511,627,776|with holes": sparse,
    }
    for said, harm in harms.items():
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        harm()
        with pytest.raises(DropoutError, match=f"{name}: want .*{said}"):
            read_header(folder, KIND)


@pytest.mark.parametrize(("number", "said"), [(4, "use that version or a later one"), (1, "make it again")])
def test_format_of_another_version_is_refused_by_name(folder: Path, number: int, said: str) -> None:
    write_header(folder, KIND._replace(format=number), {"versions": {"lbdrop": "9.9", "torch": "3"}})
    with pytest.raises(DropoutError, match=f"want format 3, got {number}, saved by lbdrop '9.9'; {said}"):
        read_header(folder, KIND)


def test_older_format_is_read_with_a_notice_but_not_if_its_seal_is_broken(folder: Path) -> None:
    header = json.loads((folder / "head.json").read_text())
    (folder / "head.json").write_text(json.dumps(header | {"format": 2}))
    with pytest.raises(DropoutError, match="its seal differs"):
        read_header(folder, KIND)
    del header["seal"], header["files"]
    (folder / "head.json").write_text(json.dumps(header | {"format": 2}))
    with pytest.warns(UserWarning, match="saved by an earlier version"):
        read_header(folder, KIND)


def test_zeros_that_a_file_system_stores_as_holes_are_whole(folder: Path) -> None:
    (folder / "a.bin").unlink()
    os.truncate(os.open(folder / "a.bin", os.O_CREAT | os.O_WRONLY), 1 << 22)
    (folder / "head.json").unlink()
    write_header(folder, KIND, {})
    assert read_header(folder, KIND)["files"]["a.bin"]["bytes"] == 1 << 22
