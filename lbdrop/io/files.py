"""Files and folders that are written completely or not at all: written beside the target, flushed to disk, then renamed.

A rename is atomic, and the content is flushed before it. So a full disk, a kill or a power cut leaves the old content.
What a killed process left beside its target is removed when the target is next written.
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

__all__ = ["disk_errors", "locked", "remove", "replacing"]

RENAME_EXCHANGE, AT_FDCWD = 2, -100
"""Constants of Linux's ``renameat2``."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A free path beside ``path`` for a file or a folder, which replaces ``path`` if the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    beside = _beside(path)
    _erase(beside)
    try:
        with disk_errors(path):
            yield beside
            _flush(beside)
            if beside.is_dir() and path.exists():
                _exchange(beside, path)  # the old one is beside now, and is removed
            else:
                beside.replace(path)
            _sync(path.parent)
    finally:
        _erase(beside)


def remove(path: Path) -> None:
    """Remove a file or folder at once: a process that is stopped meanwhile leaves no half of it at ``path``."""
    if path.exists():
        _sweep(path)
        away = _beside(path)
        _erase(away)
        path.rename(away)
        _erase(away)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn errors about the disk from packages with their own classes, as polars and safetensors, back into ``OSError``."""
    try:
        yield
    except Exception as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        if isinstance(error, OSError) or found is None:
            raise
        number = int(found.group(1))
        raise OSError(number, os.strerror(number), str(path)) from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock ``folder`` against other processes, and make it if it is missing; the lock of a killed process is released."""
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
                f"{folder}: want a folder that no other process writes to, got one locked by another process; wait for it, or"
                " choose another folder"
            ) from error
        if _is_same_file(lock, folder / "lock"):
            break
        os.close(lock)  # its holder finished and removed the folder before we had the lock
    try:
        yield
    finally:
        # Only if our lock is in it: the folder may have been removed and made again by another process.
        if _is_same_file(lock, folder / "lock") and [each.name for each in folder.iterdir()] == ["lock"]:
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


# -------------------------------------------------------------------------------------------------------------- pieces


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.{platform.node()}-{os.getpid()}.part")


def _sweep(path: Path) -> None:
    """Remove what processes of this machine that have ended left beside ``path``."""
    pattern = re.compile(rf"{re.escape(path.name)}\.{re.escape(platform.node())}-(\d+)\.part")
    for each in path.parent.iterdir():
        if (found := pattern.fullmatch(each.name)) and not _is_running(int(found.group(1))):
            _erase(each)


def _is_running(process: int) -> bool:
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


def _flush(path: Path) -> None:
    """Flush a file to disk, or a folder with everything in it."""
    if path.is_dir():
        for each in path.iterdir():
            _flush(each)
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
    """Exchange two folders: in one step on systems that can, in three renames elsewhere."""
    swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if swap is not None and swap(AT_FDCWD, os.fsencode(new), AT_FDCWD, os.fsencode(old), RENAME_EXCHANGE) == 0:
        return
    away = old.with_name(f"{new.name}.old")
    old.rename(away)
    try:
        new.rename(old)
    except OSError:
        away.rename(old)
        raise
    away.rename(new)


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
