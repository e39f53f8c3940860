"""The page: whole, self-contained, escaped, and never half written."""

import re
import struct
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lbdrop import report
from lbdrop.report import figures

VOID = {"meta", "br", "img"}


def contestant(name: str, kind: str, rates: list[float], seeds: int) -> dict[str, Any]:
    test = {"accuracy": 0.9, "nll": 0.3, "brier": 0.1, "ece": 0.02}
    error = 0.01 if seeds > 1 else None
    return {
        "name": name,
        "kind": kind,
        "strength": 1.0,
        "search": [{"strength": 0.1, "validation_nll": 0.4}, {"strength": 1.0, "validation_nll": 0.35}],
        "test": {metric: {"mean": value, "se": error} for metric, value in test.items()},
        "rates": {layer: {"mean": 0.3, "low": 0.1, "high": 0.5} for layer in ("drop1", "drop2")},
        "reliability": {"confidence": [None, 0.8], "accuracy": [None, 0.9], "count": [0, 40]},
        "per_seed": [{"seed": s, "test": test, "rates": {"drop1": rates, "drop2": rates}} for s in range(seeds)],
    }


def result(seeds: int = 2, finding: str = "it came out level") -> dict[str, Any]:
    digit = {"index": 5, "pixels": [0, 16] * 32, "predicted": 3, "truth": 8, "entropy": 1.5, "probability": 0.4}
    return {
        "settings": {"hidden": 16, "epochs": 2, "masks": 20, "start_rate": 0.5, "strengths": (0.1, 1.0)},
        "seeds": list(range(seeds)),
        "data": {"name": "digits", "train": 300, "validation": 400, "test": 1097},
        "selection": {"strength": "by validation"},
        "provenance": {"commit": "abc", "date": "today", "hardware": "a machine", "versions": {"torch": "2"}},
        "contestants": [
            contestant("fixed", "fixed", [0.5], seeds),
            contestant("layers", "per layer", [0.3], seeds),
            contestant("units", "per unit", [0.1, 0.3, 0.5], seeds),
        ],
        "uncertain": {"contestant": "units", "seed": 0, "digits": [digit, digit | {"predicted": 8}]},
        "findings": [finding],
        "seconds": 1.0,
    }


class Tags(HTMLParser):
    """Fails where a tag is closed that is not the open one."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("seeds", [1, 3])
def test_every_tag_is_closed_in_order(seeds: int):
    tags = Tags()
    tags.feed(report.render(result(seeds)))
    assert tags.open == []


def test_nothing_is_loaded_from_elsewhere():
    html = report.render(result())
    assert not re.search(r"https?://|<script|<link|@import|url\(", html)
    assert all(source.startswith("data:") for source in re.findall(r'src="([^"]*)"', html))
    assert "default-src 'none'" in html


def test_light_and_dark_and_phones_are_served():
    html = report.render(result())
    assert "prefers-color-scheme: dark" in html
    assert "width=device-width" in html


def test_text_from_the_result_is_escaped():
    html = report.render(result(finding="a < b & <b>c</b>"))
    assert "a &lt; b &amp; &lt;b&gt;c&lt;/b&gt;" in html


def test_no_number_is_undefined():
    for seeds in (1, 3):
        assert not re.search(r"\b(nan|inf|None)\b", report.render(result(seeds)))


def test_one_seed_shows_no_standard_error():
    assert "±" not in report.render(result(seeds=1))
    assert "±" in report.render(result(seeds=2))


def test_wrong_and_right_digits_are_told_apart():
    html = report.render(result())
    assert "✗ says 3, is 8" in html
    assert "✓ says 8, is 8" in html
    assert "1 of these 2 are wrong" in html


def test_the_picture_is_a_png_with_ink_dark_on_light():
    picture = figures.png([0, 16, 8, 0, 0, 16], width=3)
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", picture[16:24]) == (3, 2)
    length = struct.unpack(">I", picture[33:37])[0]
    assert zlib.decompress(picture[41 : 41 + length]) == bytes([0, 255, 0, 127, 0, 255, 255, 0])


def test_a_page_that_fails_leaves_the_old_one_whole(tmp_path: Path):
    target = report.write_page(tmp_path / "deep" / "index.html", result())
    before = target.read_text()
    with pytest.raises(KeyError):
        report.write_page(target, {"contestants": []})
    assert target.read_text() == before
    assert [path.name for path in target.parent.iterdir()] == ["index.html"]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.1411, 0.1893), (0.9442, 0.9467), (1e-9, 2e-9), (0.0, 37.0)])
def test_ticks_are_a_few_and_lie_inside(low: float, high: float):
    ticks = figures.ticks(low, high)
    assert 1 <= len(ticks) <= 4
    assert all(low <= tick <= high for tick in ticks)
