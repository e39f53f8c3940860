"""Tampered folders are refused, and the campaign finds planted faults."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tampering import KINDS

pytestmark = pytest.mark.process


def counted(tmp_path: Path, before: str = "") -> dict[str, Any]:
    """A small campaign in a process of its own, which must not have used polars before it forks."""
    code = f"import sys\nfrom benchmarks import tampering\n{before}\ntampering.main(42, 1, __import__('pathlib').Path(sys.argv[1]))"
    out = tmp_path / "tampering.json"
    subprocess.run([sys.executable, "-c", code, str(out)], capture_output=True, timeout=300, check=False)
    return json.loads(out.read_text())


def test_tampered_folders_are_refused_in_one_line_within_time_and_memory(tmp_path: Path) -> None:
    found = counted(tmp_path)
    assert found["total"] == {"tamperings": 42, "refused": 42, "silent": 0, "tracebacks": 0, "slow": 0, "large": 0}, (
        found
    )
    assert {kind: found["kinds"][kind]["tamperings"] for kind in KINDS} == dict.fromkeys(KINDS, 6)


def test_campaign_finds_planted_faults(tmp_path: Path) -> None:
    before = (
        "from lbdrop.io import manifest\nmanifest._is_whole = lambda data: True\nmanifest.faults_of_files = lambda *_: iter(())\n"
        "from lbdrop.recommend import saving\nsaving.check_ids_fit = lambda path, *_: saving.pl.read_parquet(path).height"
    )
    found = counted(tmp_path, before)["total"]
    assert found["silent"] > 0
    assert found["large"] > 0
