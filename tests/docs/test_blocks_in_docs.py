"""No block of README and docs escapes the tests: each is Python or commands, which run, or is read as what it says it is."""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_docs
import yaml
from helpers.documented import PAGES, SHELL, blocks, name

# How a block of a language that nothing can run is read.
READ: dict[str, Callable[[str], Any]] = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}


def check(page: Path) -> None:
    """An error at a block that no test runs or reads."""
    fences = [line for line in page.read_text().splitlines() if re.match(r"\s*(```|~~~)", line)]
    assert all(line.startswith("```") for line in fences), "want fences of three backticks at the start of a line"
    assert len(fences) == 2 * len(blocks(page)), "want every block closed by three backticks alone"
    before = None
    for block in blocks(page):
        if block.language == "text":  # what a block printed stands below it
            assert before is not None, "want a text block below the Python block that prints it"
            assert before.language == "python", "want a text block below the Python block that prints it"
            assert "print(" in before.text or "convert(" in before.text, before.text
        elif block.language in READ:
            READ[block.language](block.text)
        else:
            known = ("python", *SHELL)
            assert block.language in known, f"want a block of {', '.join(known)}, text, {', '.join(READ)}: {block}"
        before = block


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_run_or_read(page: Path) -> None:
    check(page)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_blocks_have_every_line_of_the_page(page: Path) -> None:
    written = [line for line in test_docs.code(page).splitlines() if line]
    run = [line for block in blocks(page) if block.language == "python" for line in block.text.splitlines() if line]
    assert run == written


def test_python_blocks_are_found() -> None:
    assert sum(block.language == "python" for page in PAGES for block in blocks(page)) > 50


@pytest.mark.parametrize(
    "wrong",
    [
        "```rust\nfn main() {}\n```\n",
        "```python title='x'\nx = 1\n```\n",
        "- a list\n\n  ```python\n  x = 1\n  ```\n",
        "~~~python\nx = 1\n~~~\n",
        "```python\nx = 1\n",
        "```json\n{'a': 1}\n```\n",
        "```toml\n[a\n```\n",
        "```yaml\na: [1\n```\n",
        "```text\nan output of nothing\n```\n",
    ],
)
def test_unchecked_block_is_an_error(wrong: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(wrong)
    with pytest.raises((AssertionError, ValueError, yaml.YAMLError)):
        check(tmp_path / "page.md")


def test_data_blocks_are_read(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text('```json\n{"a": 1}\n```\n\n```toml\na = 1\n```\n\n```yaml\na: [1]\n```\n')
    check(tmp_path / "page.md")
