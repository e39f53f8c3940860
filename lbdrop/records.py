"""What every results file carries beside its numbers: commit, versions, hardware and date."""

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

__all__ = ["provenance", "write_json"]


def provenance() -> dict[str, Any]:
    """Commit, versions, hardware and date of a run."""
    return {
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": _hardware(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "lbdrop": _version("lbdrop")},
    }


def write_json(path: Path, content: dict[str, Any]) -> Path:
    """Write beside the target, then rename: a full disk or Ctrl-C leaves the old file whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.part")
    try:
        beside.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path


def _commit() -> str:
    here = Path(__file__).parent
    try:
        call = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(call, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("LBDROP_COMMIT", "unknown")  # a copy without its history


def _hardware() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = names[0] if names else name
    return f"{name}, {torch.get_num_threads()} threads"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
