"""README and docs as tests see them: blocks with their languages, and the commands of shell blocks as words."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELL = ("", "bash", "console", "sh")
FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    text: str


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    return [Block(info.strip(), text) for info, text in FENCED.findall(page.read_text())]


def commands(page: Path) -> list[list[str]]:
    """The commands of a page as words, programs by their bare names, comments left out."""
    shell = [block.text for block in blocks(page) if block.language in SHELL]
    lines = [line for text in shell for line in text.replace("\\\n", " ").splitlines()]
    split = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]
    return [[Path(words[0]).name, *words[1:]] for words in split if words]


def mentioned(page: Path) -> list[list[str]]:
    """Commands in the text itself, unless they are only sketched."""
    text = FENCED.sub("", page.read_text())
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]
    begin = ("lbdrop ", "python -m ", "make ", "pip install ", "torchrun ", "pytest ", "mkdocs ")
    return [shlex.split(span) for span in spans if span.startswith(begin) and not re.search(r"[|…]|\.\.\.", span)]


def stands_alone(words: list[str]) -> bool:
    """Whether a command starts processes or a cluster: such lines run one by one, the others page by page."""
    return words[0] in ("torchrun", "python", "pytest") or "ray" in words


def records() -> dict[Path, int]:
    """The checkout's own results and when each was written: what no test may change."""
    folders = [*ROOT.glob("experiments/*/results"), ROOT / "benchmarks" / "results"]
    return {path: path.stat().st_mtime_ns for folder in folders for path in sorted(folder.rglob("*"))}
