"""The page: whole, self-contained, escaped, and never half written."""

import base64
import hashlib
import json
import re
import struct
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from experiments.demo import chapter as demo_page
from experiments.report import compose, pictures, svg
from experiments.report.page import Chapter, document, findings, number, section
from experiments.report.script import SCRIPT
from experiments.report.tables import html as table
from lbdrop.errors import DropoutError

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
def test_tags_are_closed_in_order(seeds: int):
    tags = Tags()
    tags.feed(demo_page.render(result(seeds)))
    assert tags.open == []


def test_page_loads_nothing_and_runs_only_its_script():
    html = demo_page.render(result())
    assert not re.search(r"https?://|<link|@import|url\(", html)
    assert all(source.startswith("data:") for source in re.findall(r'src="([^"]*)"', html))
    assert re.findall(r"<script.*?>", html) == ["<script>"]
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'" in html
    assert f"<script>{SCRIPT}</script>" in html


def test_page_supports_light_dark_and_phones():
    html = demo_page.render(result())
    assert "prefers-color-scheme: dark" in html
    assert "width=device-width" in html


def test_text_from_the_result_is_escaped():
    html = demo_page.render(result(finding="a < b & <b>c</b>"))
    assert "a &lt; b &amp; &lt;b&gt;c&lt;/b&gt;" in html


def test_page_shows_no_undefined_number():
    for seeds in (1, 3):
        assert not re.search(r"\b(nan|inf|None)\b", demo_page.render(result(seeds)).replace(SCRIPT, ""))


def test_one_seed_shows_no_standard_error():
    assert "±" not in demo_page.render(result(seeds=1))
    assert "±" in demo_page.render(result(seeds=2))


def test_wrong_and_right_digits_are_marked():
    html = demo_page.render(result())
    assert "✗ says 3, is 8" in html
    assert "✓ says 8, is 8" in html
    assert "1 of these 2 are wrong" in html
    assert "width:65.1%" in html  # 1.5 nats of ln 10


def test_picture_is_a_png_with_ink_dark_on_light():
    picture = pictures.png([0, 16, 8, 0, 0, 16], width=3)
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", picture[16:24]) == (3, 2)
    length = struct.unpack(">I", picture[33:37])[0]
    assert zlib.decompress(picture[41 : 41 + length]) == bytes([0, 255, 0, 127, 0, 255, 255, 0])


def test_failed_page_leaves_the_old_one(tmp_path: Path):
    target = demo_page.write_page(tmp_path / "deep" / "index.html", result())
    before = target.read_text()
    with pytest.raises(KeyError):
        demo_page.write_page(target, {"contestants": []})
    assert target.read_text() == before
    assert [path.name for path in target.parent.iterdir()] == ["index.html"]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.1411, 0.1893), (0.9442, 0.9467), (1e-9, 2e-9), (0.0, 37.0)])
def test_ticks_are_a_few_and_lie_inside(low: float, high: float):
    ticks = svg.ticks(low, high)
    assert 1 <= len(ticks) <= 4
    assert all(low <= tick <= high for tick in ticks)


def test_cells_hold_their_number_beside_their_text():
    shown = {"NLL": lambda row: row["nll"], "verdict": lambda row: "level"}
    rows = [{"key": k, "label": k, "nll": text} for k, text in (("a", "0.25 ± 0.01"), ("b", "−1,200"), ("c", "–"))]
    found = table(shown, rows, best={"NLL": "b"})
    assert re.findall(r"<td([^>]*)>([^<]*)</td><td", found) == [
        (' data-value="0.25"', "0.25 ± 0.01"), (' class=best data-value="-1200"', "−1,200"), ("", "–"),
    ]  # fmt: skip
    assert "<th scope=col class=text>verdict</th>" in found
    assert 'class="scroll" tabindex="0"' in found


@pytest.mark.parametrize(
    ("text", "value"),
    [("+0.0282 worse", 0.0282), ("-1.38 ± 0.26\n[-2.51, -0.25] worse", -1.38), (".3532±.0012", 0.3532), ("0.10–0.60", 0.1),
     ("4.971e-05", 4.971e-05), ("12 more", 12.0), ("LBD", None), ("", None), ("1.2.3", None)],
)  # fmt: skip
def test_cell_is_sorted_by_its_leading_number(text: str, value: float | None):
    assert number(text) == value


def test_many_findings_are_folded_and_few_are_not():
    assert "<details>" not in findings([f"number {n}" for n in range(6)])
    many = findings([f"number {n}" for n in range(9)])
    assert "<summary>4 more findings</summary>" in many
    assert many.count("<li>") == 9


def test_contents_link_to_sections_of_chapters():
    chapters = [
        Chapter(name, "lead", [section("The same", "<p>a</p>"), section("The same", "<p>b</p>")]) for name in ("A", "B")
    ]
    html = document(chapters, ["odd.json: left out"])
    ids = re.findall(r' id="([^"]+)"', html.replace(SCRIPT, ""))
    links = re.findall(r'href="#([^"]+)"', html)
    assert len(set(ids)) == len(ids) == 6
    assert sorted(links) == sorted(ids)
    assert "odd.json: left out" in html


def test_demo_json_makes_the_same_page_and_a_damaged_one_is_named(tmp_path: Path):
    record = json.loads(json.dumps(result())) | {"experiment": "demo"}
    (tmp_path / "result.json").write_text(json.dumps(record))
    found = compose.compose([tmp_path])
    assert found.page() == demo_page.render(record)
    assert [grid.rows[2][0] for grid in found.parts["demo"].grids] == ["units"]
    record["contestants"][1]["kind"] = "per mood"
    (tmp_path / "result.json").write_text(json.dumps(record))
    with pytest.raises(DropoutError, match=r"result\.json.*contestants\[1\]\.kind, got 'per mood'"):
        compose.compose([tmp_path])
