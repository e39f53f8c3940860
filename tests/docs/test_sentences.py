"""README and docs are read by somebody tired: short sentences, one idea each."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
MAX_MEAN, MAX_WORDS = 20, 40
NAMES = re.compile(r"(\S+, ){4,}\S+")
"""Nothing but names, as a list of models has them."""


def sentences(text: str) -> list[str]:
    """Of paragraphs and points of lists; without code, formulas, tables, headings and the addresses of links."""
    for pattern, instead in (
        (r"```.*?```|<!--.*?-->|\$\$.*?\$\$|\(`[^`]*`\)", ""),
        (r"\$[^$\n]+\$", "x"),
        (r"!?\[([^\]]*)\]\([^)]*\)", r"\1"),
        (r"`[^`]*`", "Code"),
        (r"\b(e\.g|i\.e|al)\.", r"\1"),
    ):
        text = re.sub(pattern, instead, text, flags=re.DOTALL)
    blocks = [block.strip() for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)|\n(?=[#|])", text)]
    prose = [" ".join(block.split()) for block in blocks if block and block[0] not in "#|<"]
    return [each for block in prose for each in re.split(r"(?<=[.!?:])[*_\")]*\s+(?=[*_\"(]*[A-Z0-9])", block) if each]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two\nthree! `four` five.", ["One.", "Two three!", "Code five."]),
        ("# Title\n\n- a b\n- c d\n\n| x | y |\n\n```\ncode\n```\n", ["- a b", "- c d"]),
        ("See [the page](a/b.md), e.g. Figure 3. Then (`x.py`) $a + b$.", ["See the page, e.g Figure 3.", "Then x."]),
    ],
)
def test_sentences_are_what_a_reader_sees_as_such(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_of_a_page_are_short(page: Path) -> None:
    counts = {each: len(each.split()) for each in sentences(page.read_text()) if not NAMES.fullmatch(each.rstrip("."))}
    assert not {each: count for each, count in counts.items() if count > MAX_WORDS}
    assert not counts or sum(counts.values()) / len(counts) <= MAX_MEAN
