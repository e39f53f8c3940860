"""The bounds of torch in ``pyproject.toml`` are those that its record justifies."""

import json
import tomllib

from packaging.requirements import Requirement
from packaging.version import Version

from benchmarks.torch_versions import RESULTS, ROOT, VERSIONS, summary

RECORD = json.loads((RESULTS / "torch_versions.json").read_text())


def torch_requirement() -> Requirement:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return next(each for each in map(Requirement, dependencies) if each.name == "torch")


def test_oldest_and_newest_allowed_torch_were_tested_without_a_failure() -> None:
    assert list(RECORD["torch"]) == VERSIONS
    for version, row in RECORD["torch"].items():
        assert row["torch"].split("+")[0] == version
        assert (row["failed"], row["failures"], row["skipped"]) == (0, [], 0)
        assert row["passed"] > 500


def test_bounds_allow_the_tested_releases_and_nothing_beyond() -> None:
    oldest, newest = Version(VERSIONS[0]), Version(VERSIONS[-1])
    allowed = torch_requirement().specifier
    assert oldest in allowed
    assert newest in allowed
    assert Version(f"{oldest.major}.{oldest.minor - 1}.9") not in allowed
    assert Version(f"{newest.major}.{newest.minor + 1}.0") not in allowed


def test_summary_counts_each_test_once() -> None:
    report = """<testsuites><testsuite>
        <testcase classname="a" name="good" time="0.5"/>
        <testcase classname="a" name="bad" time="1"><failure/><error/></testcase>
        <testcase classname="a" name="broken" time="0"><error/></testcase>
        <testcase classname="a" name="left" time="0"><skipped/></testcase>
    </testsuite></testsuites>"""
    assert summary(report) == {
        "passed": 1, "failed": 2, "skipped": 1, "seconds": 1.5, "failures": ["a::bad", "a::broken"],
    }  # fmt: skip
