"""The audit names what was not audited, and fails for a version with a known vulnerability."""

import json
import subprocess
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


def test_advisory_is_about_the_versions_it_names() -> None:
    def affected(there: str, *events: dict[str, str], versions: tuple[str, ...] = ()) -> bool:
        part = {
            "package": {"name": "Some_Package"},
            "ranges": [{"type": "ECOSYSTEM", "events": events}],
            "versions": versions,
        }
        assert not audit.affects(part, "another", there)
        return audit.affects(part, "some-package", there)

    fixed = {"introduced": "0"}, {"fixed": "1.10"}
    assert affected("1.9", *fixed)
    assert not affected("1.10", *fixed)
    assert not affected("1.10.1+cpu", *fixed)
    assert affected("3.0", *fixed, {"introduced": "2.0"})
    assert affected("1.2", {"introduced": "1.0"}, {"last_affected": "1.2"})
    assert not affected("1.3", {"introduced": "1.0"}, {"last_affected": "1.2"})
    assert affected("7.0", *fixed, versions=("7.0",))


def test_clone_of_the_advisory_database_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "vulns" / "torch"
    folder.mkdir(parents=True)
    text = "id: PYSEC-1\naffected:\n- package: {name: torch}\n  ranges:\n  - type: ECOSYSTEM\n    events: [{introduced: '0'}]\n"
    (folder / "PYSEC-1.yaml").write_text(text)
    (folder / "PYSEC-2.yaml").write_text(text.replace("PYSEC-1", "PYSEC-2") + "withdrawn: '2020-01-01T00:00:00Z'\n")
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "one")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    found = audit._of_clone({"torch": "2.0+cpu", "numpy": "2.0"}, tmp_path)
    assert found["found"] == [{"name": "torch", "version": "2.0+cpu", "id": "PYSEC-1"}]
    assert found["said"].startswith("1 of 2 known vulnerabilities in PyPA's advisory database of 20")
