"""The documentation is a site: it builds without a warning, loads nothing from elsewhere, and its links lead somewhere."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlparse

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent


pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The site, and the warnings that it was built with, by the command of ``make site``."""
    site = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return site, [line for line in done.stderr.splitlines() if line.startswith(("WARNING", "ERROR"))]


@pytest.fixture(scope="module")
def pages(built: tuple[Path, list[str]]) -> dict[str, str]:
    site, _ = built
    return {path.relative_to(site).as_posix(): path.read_text() for path in site.rglob("*.html")}


def nav(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    inside = entry.values() if isinstance(entry, dict) else entry
    return [page for each in inside for page in nav(each)]


def test_site_builds_without_a_warning(built: tuple[Path, list[str]]) -> None:
    assert built[1] == []


def test_every_page_is_in_the_navigation(pages: dict[str, str]) -> None:
    listed = nav(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(listed) == sorted(written | {"index.md"})
    assert {page.replace(".md", ".html") for page in listed} <= set(pages)


def test_site_loads_nothing_from_elsewhere(built: tuple[Path, list[str]], pages: dict[str, str]) -> None:
    loads = r"<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)"
    for name, text in pages.items():
        assert not re.findall(loads, text), name
    for style in built[0].rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import\s+[\"']?https?:", style.read_text()), style.name


def test_site_links_lead_to_files_and_headings(built: tuple[Path, list[str]], pages: dict[str, str]) -> None:
    names = {name: set(re.findall(r"\bid=[\"']?([^\"'\s>]+)", text)) for name, text in pages.items()}
    checked = 0
    for name, text in pages.items():
        body = re.sub(r"<pre\b.*?</pre>", "", text, flags=re.DOTALL)
        for link in re.findall(r"<(?:a|img|script|link)\b[^>]*?\b(?:href|src)=[\"']?([^\"'\s>]+)", body):
            where = urlparse(urljoin(f"http://site/{name}", html.unescape(link)))
            if urlparse(link).scheme or name == "404.html":
                continue
            path = unquote(where.path).lstrip("/") or "index.html"
            assert (built[0] / path).is_file(), f"{name}: {link}"
            if where.fragment and path in names:
                assert unquote(where.fragment) in {html.unescape(each) for each in names[path]}, f"{name}: {link}"
            checked += 1
    assert checked > 1_000


def test_formulas_are_mathml(pages: dict[str, str]) -> None:
    assert pages["the_gradient.html"].count("<math") > 60
    for name, text in pages.items():
        assert "arithmatex" not in text, name
        assert not re.search(r"<m\w+>\$", text), f"{name}: two formulas in one"


def test_api_shows_docstrings_with_examples(pages: dict[str, str]) -> None:
    core = pages["api/core.html"]
    assert 'id="lbdrop.sites.convert.convert"' in core
    assert "&gt;&gt;&gt; " in core
    for name in ("core", "estimators", "metrics", "vision", "recommender", "integrations", "serve", "report"):
        assert pages[f"api/{name}.html"].count('class="doc doc-heading"') >= 4, name
        assert "Tensor, 2 * mask" not in pages[f"api/{name}.html"]  # a shape, "2 *mask", is no product
        assert not re.search(r":(?:class|func|meth|mod|data|attr):<code>", pages[f"api/{name}.html"]), name
