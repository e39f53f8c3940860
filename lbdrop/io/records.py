"""JSON records: written completely, read strictly, and with the commit, versions, hardware and date of their run."""

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from lbdrop.errors import DropoutError, first_line
from lbdrop.io.files import check_plain, replacing

__all__ = ["package_version", "parse_json", "provenance", "read_json", "write_json"]

MAX_BYTES = 1 << 28
"""Bytes of a JSON file; the record of a run has thousands."""
MAX_DIGITS = 20
"""Digits of a whole number; sums and formats cannot hold more."""


def provenance(device: torch.device | str | None = None) -> dict[str, Any]:
    """Commit, versions, hardware and date of a run on ``device``, by default a GPU if there is one."""
    return {
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": _hardware(device),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "lbdrop": package_version("lbdrop"),
        },
    }


def write_json(path: Path, content: dict[str, Any]) -> Path:
    """Write a file and return its path; a full disk or Ctrl-C leaves the old file as it was."""
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")
    return path


def read_json(path: Path) -> Any:
    """The content of a JSON file in UTF-8; a name that occurs twice, or a too long number, is a ``DropoutError``."""
    try:
        if (size := check_plain(path)) > MAX_BYTES:
            raise DropoutError(f"{path}: want at most {MAX_BYTES:,} bytes of JSON, got {size:,}")
        return parse_json(path, path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise DropoutError(f"{path}: could not be read ({error.strerror or error})") from error


def parse_json(path: Path, data: bytes) -> Any:
    """The content of these bytes, which are those of ``path``."""
    try:
        return json.loads(data.decode(), object_pairs_hook=_unique_names, parse_int=_bounded_int)
    except (ValueError, RecursionError) as error:
        raise DropoutError(f"{path}: want JSON, got {first_line(error)}; write it again") from error


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ValueError(f"the name {twice[:60]!r} twice")
    return content


def _bounded_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a whole number of {len(digits):,} digits")
    return int(digits)


def _commit(here: Path = Path(__file__).parent) -> str:
    """The commit, marked dirty if tracked files differ from it; results do not count, since earlier runs change them."""
    try:
        commit = _git(here, "rev-parse", "--short=12", "HEAD")
        changed = _git(
            here, "status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude,glob)**/results/**"
        )
        return f"{commit}-dirty" if changed else commit
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("LBDROP_COMMIT", "unknown")  # no git, or no repository


def _git(here: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def _hardware(device: torch.device | str | None = None) -> str:
    if torch.cuda.is_available() and torch.device(device or "cuda").type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = names[0] if names else name
    return f"{name}, {torch.get_num_threads()} threads"


def package_version(package: str) -> str:
    """The installed version, or "unknown"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
