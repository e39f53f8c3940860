"""The audit names what was not audited, and fails for a version with a known vulnerability."""

import json
from pathlib import Path

from typer.testing import CliRunner

from benchmarks import audit


def test_audit_walks_all_extras() -> None:
    found = audit.installed()
    assert {"torch", "polars", "fastapi", "lightning", "numpy", "sympy"} <= found.keys()  # the last is torch's
    assert "lbdrop" not in found


def test_other_versions_are_named_and_vulnerable_ones_fail(tmp_path: Path) -> None:
    found = audit.installed()
    record = {"packages": found | {"torch": "0.1"}, "advisories": {"found": [], "said": "0 known"}}
    record["packages"].pop("polars")
    others, vulnerable = audit.compare(found, record)
    assert [line.partition(":")[0] for line in others] == ["polars", "torch"]
    assert not vulnerable
    record["advisories"]["found"] = [
        {"name": "numpy", "version": found["numpy"], "id": "PYSEC-1"},
        {"name": "torch", "version": "0.1", "id": "PYSEC-2"},
    ]
    assert audit.compare(found, record)[1] == [
        f"numpy {found['numpy']}: PYSEC-1, see https://osv.dev/PYSEC-1; update it"
    ]
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(record))
    import typer

    app = typer.Typer()
    app.command()(audit.main)
    assert CliRunner().invoke(app, ["--check", "--out", str(path)]).exit_code == 1


def test_committed_audit_says_what_it_was_audited_against() -> None:
    record = json.loads(audit.RECORD.read_text())
    assert record["packages"]
    assert record["advisories"]["said"]
    assert record["provenance"]["date"]
