"""Runs recorded in full precision give the same numbers again: to the bit here, to rounding on other processors."""

import pytest

from . import records
from .all import ALL


@pytest.mark.process
@pytest.mark.parametrize("name", ALL)
def test_golden_record_gives_the_same_numbers(name: str) -> None:
    record = records.read(name)
    exact = record["made"]["machine"] == records.machine()
    wrong = records.differences(records.run(ALL[name]), record["numbers"], exact=exact)
    assert not wrong, (
        f"{name}: want the recorded numbers ({'every bit' if exact else 'to rounding'}), got others; where the change is"
        f" meant, run python -m tests.golden.remake {name}, and say in the commit what changed and why\n"
        + "\n".join(wrong)
    )


def test_golden_records_are_those_of_the_recipes() -> None:
    assert sorted(path.stem for path in records.RECORDS.glob("*.json")) == sorted(ALL)


def test_differences_name_what_is_missing_longer_or_moved() -> None:
    old = {"a": [1.0, 2.0], "b": [3.0], "c": [4.0]}
    new = {"a": [1.0, 2.0 + 1e-5], "b": [3.0, 3.0], "d": [4.0]}
    exact = records.differences(new, old, exact=True)
    assert [line.split(":")[0] for line in exact] == ["a", "b", "c", "d"]
    assert len(records.differences(new, old, exact=False)) == 3
    assert records.differences({"a": [1.0, 2.1]}, {"a": [1.0, 2.0]}, exact=False)
