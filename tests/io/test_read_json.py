"""JSON from untrusted sources is read strictly and within bounds, or refused in one line."""

import json
from pathlib import Path

import pytest

from lbdrop.errors import DropoutError
from lbdrop.io import records
from lbdrop.io.records import read_json, write_json


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "the name 'a' twice"),
        ('{"x": {"a": 1, "a": 1}}', "the name 'a' twice"),
        ("[" * 100_000, "recursion"),
        ('{"a":' * 100_000, "recursion"),
        ('{"a": %s}' % ("9" * 5000), "a whole number of 5,000 digits"),
        ('{"a": %s}' % ("9" * 400), "a whole number of 400 digits"),
        ("{'a': 1}", "want JSON, got"),
        ("", "want JSON, got"),
        ('{"a": "\ud800"}'.encode("utf-8", "surrogatepass"), "utf-8"),
        (b"\xff\xfe\x00", "utf-8"),
    ],
)
def test_invalid_json_is_a_one_line_error_that_names_the_file(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DropoutError, match=message) as error:
        read_json(path)
    assert str(error.value).startswith(f"{path}: want JSON, got ")
    assert "\n" not in str(error.value)


def test_file_that_is_too_long_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.json").write_text("[1, 2, 3]")
    monkeypatch.setattr(records, "MAX_BYTES", 8)
    with pytest.raises(DropoutError, match="want at most 8 bytes of JSON, got 9"):
        read_json(tmp_path / "a.json")


def test_missing_file_is_left_to_the_caller(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "a.json")
    with pytest.raises(DropoutError, match="want a file, got a folder"):
        read_json(tmp_path)


def test_written_record_is_read_back_unchanged(tmp_path: Path) -> None:
    content = {"a": [1, 2.5, None, True, "é"], "b": {"c": 2**63 - 1, "d": -(2**63)}}
    assert (
        read_json(write_json(tmp_path / "a.json", content)) == content == json.loads((tmp_path / "a.json").read_text())
    )
