"""Files and folders that are written completely or not at all: written beside the target, flushed to disk, then renamed.

A rename is atomic, and the content is flushed before it. So a full disk, a kill or a power cut leaves the old content.
What a killed process left beside its target is removed when the target is next written. A link is followed: what it points
to is replaced. What is no plain file is neither read nor replaced, and what is not ours is not removed.
"""

import ctypes
import errno
import os
import platform
import re
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from lbdrop.errors import DropoutError

__all__ = ["PART", "check_plain", "disk_errors", "locked", "real", "remove", "replacing"]

RENAME_EXCHANGE, AT_FDCWD = 2, -100
"""Constants of Linux's ``renameat2``."""
LOCK, MARK = "lock", b"lbdrop: work in progress\n"
"""A file in a folder of unfinished work, and what it says; so no other program's folder is taken for one."""
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What a file system without locks says."""
PART = r"[^/]+-\d+\.part"
"""The name of what is written beside its target, as a pattern."""
MAX_HOLES = 1 << 20
"""Bytes of holes in a file."""
_held: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())
"""Folders that this thread, or this task, has locked."""
KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
         stat.S_IFBLK: "a device"}  # fmt: skip


def real(path: Path) -> Path:
    """The path without links, ``.`` and ``..``: it has a name, and a place beside it."""
    return Path(os.path.realpath(path))


def check_plain(path: Path, inside: Path | None = None, holes: int = MAX_HOLES) -> int:
    """The bytes of a plain file; an error if it is another thing, a link to a place that is not ``inside``, or mostly holes.

    A FIFO would be waited for, a device read for ever, and a terabyte of holes costs nothing to send. But some file systems
    make holes of zeros: where size and content are checked anyway, more of them may be allowed.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise DropoutError(f"{path}: want a file, got {KINDS.get(stat.S_IFMT(found.st_mode), 'something else')}")
    if inside is not None and not real(path).is_relative_to(real(inside)):
        raise DropoutError(f"{path}: want a file of this folder, got a link to {real(path)}; copy the file there")
    if found.st_size - 512 * getattr(found, "st_blocks", found.st_size) > holes and _has_holes(path, found.st_size):
        raise DropoutError(f"{path}: want a whole file, got one with holes; copy it with cp --sparse=never")
    return found.st_size


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A free path beside ``path`` for a file or a folder, which replaces ``path`` if the block ends without an error.

    The folder in which this process is, and one where a file system begins, stay, and their files are replaced one by one,
    JSON last.
    """
    path = real(path)
    if path.exists() and not path.is_dir():
        _check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    stays = path.is_dir() and (path.is_mount() or _here().is_relative_to(path))
    place = path / path.name if stays and path.name else path
    _sweep(place)
    beside = _beside(place)
    _erase(beside)
    try:
        with disk_errors(path):
            yield beside
            _flush(beside)
            if stays and beside.is_dir():
                _fill(path, beside)
            else:
                _put(beside, path)
            _sync(path.parent)
    finally:
        _erase(beside)


def remove(path: Path, ours: str = ".*") -> None:
    """Remove a file or folder at once: a process that is stopped meanwhile leaves no half of it at ``path``.

    Of a folder only what matches ``ours`` is removed, see :func:`locked`; with other files in it, they and it stay.
    """
    if path.is_dir() and (others := _others(path, ours)):
        for each in sorted(path.rglob("*"), reverse=True):
            if each not in others and (each.is_symlink() or not each.is_dir()):
                each.unlink()
            elif each.is_dir() and not any(each.iterdir()):
                each.rmdir()
    elif path.exists():
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
        found = re.search(r"\(os error (\d+)\)|thrift: transport error", str(error))  # the last: in a footer of Parquet
        if isinstance(error, OSError) or found is None:
            raise
        number = int(found[1] or errno.EIO)
        raise OSError(number, os.strerror(number), str(path)) from error


@contextmanager
def locked(folder: Path, ours: str | None = ".*") -> Iterator[None]:
    """Lock ``folder`` against others, and make it if it is missing; the lock of a killed process is released.

    Paths of files in it must match ``ours`` and its lock must be ours, or it is an error: what is there is somebody else's.
    With ``None`` other files may be there, the lock goes at the end, and one that the caller holds already is enough.
    """
    place = real(folder)
    if ours is None and place in _held.get():
        yield
        return
    _check_work(folder, ours)
    try:
        import fcntl
    except ModuleNotFoundError:  # no such locks on this system
        folder.mkdir(parents=True, exist_ok=True)
        yield
        return
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        kept = ours is not None or (folder / LOCK).exists()
        lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(lock)
                raise DropoutError(
                    f"{folder}: want a folder that nobody else writes to, got one locked by another process or thread; wait"
                    " for it, or choose another folder"
                ) from error
        if _is_same_file(lock, folder / LOCK):
            os.pwrite(lock, MARK, 0)
            break
        os.close(lock)  # its holder finished and removed the folder before we had the lock
    _held.set(_held.get() | {place})
    try:
        yield
    finally:
        _held.set(_held.get() - {place})
        # Only if our lock is in it: the folder may have been removed and made again by another process.
        if _is_same_file(lock, folder / LOCK):
            if not kept:
                (folder / LOCK).unlink()
            elif [each.name for each in folder.iterdir()] == [LOCK]:
                shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


# -------------------------------------------------------------------------------------------------------------- pieces


def _others(folder: Path, ours: str) -> list[Path]:
    """What is in a folder of work, below it too, and was not made by us."""
    pattern = re.compile(rf"{LOCK}|{ours}", re.DOTALL)
    files = (each for each in folder.rglob("*") if each.is_symlink() or not each.is_dir())
    return sorted(each for each in files if not pattern.fullmatch(each.relative_to(folder).as_posix()))


def _check_work(folder: Path, ours: str | None) -> None:
    found = _others(folder, ours) if ours is not None and folder.is_dir() else []
    lock = folder / LOCK
    said = lock.read_bytes() if lock.exists() and check_plain(lock, folder) <= len(MARK) else b""
    if not found and folder.is_dir() and said != MARK:
        found = [
            each for each in sorted(folder.iterdir()) if (each.stat().st_size if each == lock else ours is not None)
        ]
    if found:
        raise DropoutError(
            f"{folder}: want unfinished work of lbdrop or a new folder, got {found[0].relative_to(folder)} there, which would"
            " be lost; move it elsewhere, or choose another place"
        )


def _has_holes(path: Path, size: int) -> bool:
    try:
        with path.open("rb") as file:
            return os.lseek(file.fileno(), 0, os.SEEK_HOLE) < size
    except (AttributeError, OSError):  # of systems that know no holes; reading tells of other errors
        return False


def _check_replaceable(path: Path) -> None:
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind != stat.S_IFREG:
        raise DropoutError(f"{path}: want a place for a file, got {KINDS.get(kind, 'something else')}; choose another")


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was removed
        return Path("/")


def _fill(folder: Path, new: Path) -> None:
    """Put the files of ``new`` into ``folder`` in place of those there, JSON last, which says what the others are."""
    files = sorted(new.iterdir(), key=lambda each: each.suffix == ".json")
    for each in files:
        each.replace(folder / each.name)
    for each in folder.iterdir():
        if each != new and each.name not in {file.name for file in files}:
            _erase(each)


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.{platform.node()}.{threading.get_native_id()}-{os.getpid()}.part")


def _sweep(path: Path) -> None:
    """Remove what processes of this machine that have ended left beside ``path``."""
    pattern = re.compile(rf"{re.escape(path.name)}\.{re.escape(platform.node())}(?:\.\d+)?-(\d+)\.part")
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


def _put(new: Path, path: Path) -> None:
    if not (new.is_dir() and path.exists()):
        try:
            new.replace(path)
            return
        except OSError:
            if not (new.is_dir() and path.is_dir()):  # one that another process or thread has just put there
                raise
    _exchange(new, path)  # the old one is beside now, and is removed


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
