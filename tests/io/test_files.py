"""Files and folders are written completely or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lbdrop.errors import DropoutError
from lbdrop.io import files
from lbdrop.io.files import check_plain, disk_errors, locked, remove, replacing

DEAD = 2**22 + 1
"""No process has this number: Linux stops at 2²²."""


def fill(path: Path, text: str) -> None:
    path.mkdir()
    (path / "content").write_text(text)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_target_has_the_old_content_until_the_new_is_complete(kind: str, tmp_path: Path) -> None:
    target, write = tmp_path / "deep" / "target", (fill if kind == "folder" else Path.write_text)
    content = target / "content" if kind == "folder" else target
    with replacing(target) as beside:
        write(beside, "old")
    for reason in (OSError(28, "No space left on device"), KeyboardInterrupt()):
        with pytest.raises(type(reason)), replacing(target) as beside:
            write(beside, "half")
            raise reason
        assert content.read_text() == "old"
        assert os.listdir(target.parent) == ["target"]
    with replacing(target) as beside:
        write(beside, "new")
        assert content.read_text() == "old"
    assert content.read_text() == "new"
    assert os.listdir(target.parent) == ["target"]


def test_folders_are_exchanged_by_renames_where_the_system_has_no_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.ctypes, "CDLL", lambda *_, **__: object())
    for text in ("old", "new"):
        with replacing(tmp_path / "target") as beside:
            fill(beside, text)
    assert (tmp_path / "target" / "content").read_text() == "new"
    assert os.listdir(tmp_path) == ["target"]


def test_leftovers_of_a_killed_process_are_removed_by_the_next_write_and_nothing_else_is(tmp_path: Path) -> None:
    node, running = files.platform.node(), os.getppid()
    left = tmp_path / f"a.json.{node}-{DEAD}.part"
    others = [
        f"a.json.{node}-{running}.part",
        f"b.json.{node}-{DEAD}.part",
        f"a.json.elsewhere-{DEAD}.part",
        "a.json.part",
    ]
    for name in (left.name, *others):
        (tmp_path / name).write_text("")
    with replacing(tmp_path / "a.json") as beside:
        beside.write_text("{}")
    assert sorted(os.listdir(tmp_path)) == sorted(["a.json", *others])


def test_disk_errors_of_other_packages_keep_their_number(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as raised, disk_errors(tmp_path):
        raise RuntimeError("parquet: I/O error: no room (os error 28)")
    assert raised.value.errno == 28
    with pytest.raises(OSError, match="Input/output error"), disk_errors(tmp_path):
        raise RuntimeError("parquet: File out of specification: Invalid thrift: transport error")
    with pytest.raises(RuntimeError, match="shape"), disk_errors(tmp_path):
        raise RuntimeError("wrong shape")


def test_folder_is_removed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "state", "text")
    monkeypatch.setattr(files.shutil, "rmtree", lambda *_, **__: None)  # stopped before its files go
    remove(tmp_path / "state")
    assert not (tmp_path / "state").exists()
    remove(tmp_path / "never")


@pytest.mark.process
def test_lock_is_exclusive_and_released_when_its_holder_is_killed(tmp_path: Path) -> None:
    place = tmp_path / "work"
    code = (
        "import sys, time; from pathlib import Path; from lbdrop.io.files import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(place)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DropoutError, match="locked by another process"), locked(place):
            pass
    finally:
        holder.kill()
        holder.wait()
        assert holder.stdout is not None
        holder.stdout.close()
    with locked(place):
        assert place.exists()
    assert not place.exists()  # nothing was done in it


def test_lock_of_a_removed_folder_leaves_the_next_holder_its_own(tmp_path: Path) -> None:
    place = tmp_path / "work"
    with locked(place):
        remove(place)
        following = locked(place)
        following.__enter__()  # at once, while the first has not quite ended
    with pytest.raises(DropoutError, match="locked by another process"), locked(place):
        pass
    following.__exit__(None, None, None)
    assert not place.exists()


def test_file_of_holes_is_refused_where_nothing_else_tells_its_size(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(DropoutError, match="want a whole file, got one with holes; copy it with cp --sparse=never"):
        check_plain(path)
