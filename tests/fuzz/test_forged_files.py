"""Whatever is done to a file, its reader accepts it or refuses it in one line, and nothing in it runs or leaves its folder."""

import pickle
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from benchmarks.fuzz import READERS, campaign, check, settled
from benchmarks.fuzz_changes import CANARY, HOSTILE, Files
from benchmarks.fuzz_containers import changes

EXAMPLES = 4
"""Inputs for each reader; ``python -m benchmarks.fuzz`` tries thousands."""


@pytest.mark.parametrize("name", READERS)
def test_forged_files_are_accepted_or_refused_in_one_line(name: str) -> None:
    files = Files(READERS[name].files())

    @settled(EXAMPLES, derandomize=True)
    @given(forged=changes(files), signed=st.booleans())
    def holds(forged: Files, signed: bool) -> None:
        check(name, forged, signed)

    holds()


@pytest.mark.parametrize("name", [name for name in READERS if not name.startswith("VGG")])
def test_unchanged_files_are_accepted(name: str) -> None:
    assert check(name, Files(READERS[name].files())) == "accepted"


def test_campaign_finds_a_reader_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(at: Path) -> None:
        (at / "likes.csv").read_text(encoding="ascii")

    monkeypatch.setitem(READERS, "careless", READERS["fit: CSV"]._replace(read=careless))
    found = campaign("careless", 200, 0)
    assert found["tracebacks"] == 1
    assert "UnicodeDecodeError" in found["fault"]


def test_check_finds_a_reader_that_runs_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(at: Path) -> None:
        pickle.loads((at / "data_batch_1").read_bytes())

    monkeypatch.setitem(READERS, "trusting", READERS["CIFAR-10: pickles"]._replace(read=trusting))
    try:
        with pytest.raises(AssertionError, match="code in the file was run"):
            check("trusting", {"data_batch_1": HOSTILE})
    finally:
        Path(CANARY).rmdir()
