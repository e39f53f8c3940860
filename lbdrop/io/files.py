"""Files and folders that are there whole or not at all: written beside their place, brought to the disk, renamed.

A rename is atomic and the disk is asked to hold the content before it, so that a full disk, a kill or a power cut leaves
what was there before. What a killed process left beside its target goes when the target is next written.
"""

import ctypes
import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lbdrop.errors import DropoutError

__all__ = ["alone", "disk_errors", "remove", "replacing"]

EXCHANGE, HERE = 2, -100
"""Linux's RENAME_EXCHANGE and AT_FDCWD."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A free place beside ``path`` for a file or a folder, which takes the place of ``path`` if nothing goes wrong."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    beside = _beside(path)
    _erase(beside)
    try:
        with disk_errors(path):
            yield beside
            _to_disk(beside)
            if beside.is_dir() and path.exists():
                _exchange(beside, path)  # the old one is beside now, and goes
            else:
                beside.replace(path)
            _sync(path.parent)
    finally:
        _erase(beside)


def remove(path: Path) -> None:
    """Take a folder away at once: whoever is stopped while its files go leaves no half of it in its place."""
    if path.exists():
        _sweep(path)
        away = _beside(path)
        _erase(away)
        path.rename(away)
        _erase(away)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """What packages with errors of their own say of the disk is an OSError again: polars, safetensors."""
    try:
        yield
    except Exception as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        if isinstance(error, OSError) or found is None:
            raise
        number = int(found.group(1))
        raise OSError(number, os.strerror(number), str(path)) from error


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold ``folder``, which is made if need be, against other processes; a process that is killed lets go of it."""
    try:
        import fcntl
    except ModuleNotFoundError:  # no such locks on this system
        folder.mkdir(parents=True, exist_ok=True)
        yield
        return
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise DropoutError(
                f"{folder}: want it for this process alone, got another one at work there; wait for it, or choose another"
                " place"
            ) from error
        if _is(lock, folder / "lock"):
            break
        os.close(lock)  # its holder finished and took the folder away before we had it
    try:
        yield
    finally:
        # With our lock still in it: one that was taken away may be there again, as another process's.
        if _is(lock, folder / "lock") and [each.name for each in folder.iterdir()] == ["lock"]:
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


# -------------------------------------------------------------------------------------------------------------- pieces


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.{platform.node()}-{os.getpid()}.part")


def _sweep(path: Path) -> None:
    """Remove what processes of this machine that are no more left beside ``path``."""
    pattern = re.compile(rf"{re.escape(path.name)}\.{re.escape(platform.node())}-(\d+)\.part")
    for each in path.parent.iterdir():
        if (found := pattern.fullmatch(each.name)) and not _lives(int(found.group(1))):
            _erase(each)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _erase(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _to_disk(path: Path) -> None:
    """Ask the disk to hold a file, or a folder with all that is in it."""
    if path.is_dir():
        for each in path.iterdir():
            _to_disk(each)
    _sync(path)


def _sync(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # a folder, on systems that open none
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _exchange(new: Path, old: Path) -> None:
    """Let two folders change places: in one step where the system knows how, in two renames elsewhere."""
    swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if swap is not None and swap(HERE, os.fsencode(new), HERE, os.fsencode(old), EXCHANGE) == 0:
        return
    away = old.with_name(f"{new.name}.old")
    old.rename(away)
    try:
        new.rename(old)
    except OSError:
        away.rename(old)
        raise
    away.rename(new)


def _is(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
