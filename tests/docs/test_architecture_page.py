"""The architecture page is true: its files exist and follow from each other, no flow visits one twice, its layers are enforced."""

import re
from pathlib import Path

import pytest
from helpers.documented import ROOT
from test_architecture import LAYERS, imports, module_files

PAGE = ROOT / "docs" / "architecture.md"
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL))
FLOWS = {
    title: [PAGE.parent.joinpath(file).resolve() for file in re.findall(r"^\d+\. \[.*?\]\((.*?)\)", text, re.MULTILINE)]
    for title, text in SECTIONS.items()
    if title != "Layers"
}


def below(file: Path) -> set[Path]:
    """The files that a file needs, by any detour: those whose names it imports."""
    files, found, waiting = module_files(), set(), [file]
    while waiting:
        for name in imports(waiting.pop()) & files.keys() - {"lbdrop"}:
            if files[name] not in found:
                found.add(files[name])
                waiting.append(files[name])
    return found


def test_page_has_a_flow_for_each_use() -> None:
    assert [*FLOWS] == [
        "A bound step",
        "A held-out step",
        "Predict",
        "Fit, recommend, serve",
        "Reproduce, report",
    ]
    assert all(len(files) >= 8 for files in FLOWS.values())


@pytest.mark.parametrize("title", FLOWS)
def test_flow_names_files_that_exist_and_none_twice(title: str) -> None:
    files = FLOWS[title]
    assert [file for file in files if not file.is_file()] == []
    assert sorted(files) == sorted(set(files))


@pytest.mark.parametrize("title", [title for title in FLOWS if title != "Reproduce, report"])
def test_flow_goes_along_imports(title: str) -> None:
    """Each file is needed by one that comes before it; commands load experiments by their names in strings."""
    first, *others = FLOWS[title]
    reached = {first} | below(first)
    for file in others:
        assert file in reached, file
        reached |= below(file)


def test_paths_outside_the_flows_exist() -> None:
    for file in re.findall(r"`((?:lbdrop|experiments|benchmarks|tests)/[\w/.]*)`", PAGE.read_text()):
        assert (ROOT / file).exists(), file


def test_page_has_the_enforced_layers() -> None:
    lines = re.findall(r"^\d+\. (.*?): ", SECTIONS["Layers"], re.MULTILINE)
    assert [tuple(re.findall(r"`(\w+)`", line)) for line in lines] == [*LAYERS]
