r"""What the site needs beyond Markdown: the README as its first page, files beside docs/, formulas without a script.

Pages link to files as they lie on the disk, such as ``../experiments/toy/README.md``. Those outside of ``docs`` come along
under ``repository/``, and so does what they link to: Markdown as pages, source as pages of code, folders as lists, anything
else as it is. Formulas, $…$, become MathML, which browsers draw themselves.
"""

import ast
import html
import re
from pathlib import Path
from posixpath import relpath

from griffe import Extension, Function, Object, ObjectNode
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"
BESIDE = "repository"

CODE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
ROLE = re.compile(r":(?:class|data|meth|func|mod|attr):<code>(~?)([\w.]+)</code>")
DOCTEST = re.compile(r"(?:^ *>>>.*\n(?: *\S.*(?:\n|\Z))*)+", re.MULTILINE)
SHAPED = re.compile(r"\[(?:torch\.)?Tensor, |\[np\.ndarray, ")
SOURCE = {".py": "python", ".toml": "toml", ".yml": "yaml", "": "text"}


class Docstrings(Extension):
    """Examples of docstrings as blocks of code, and shapes in signatures as they are written."""

    def on_object(self, *, obj: Object, **rest: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = DOCTEST.sub(_fenced, obj.docstring.value + "\n")

    def on_function_instance(self, *, node: ast.AST | ObjectNode, func: Function, **rest: object) -> None:
        """Shapes are text to a reader: as code, "2 *mask" would be a product."""
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        if node.returns is not None and SHAPED.search(written := ast.unparse(node.returns)):
            func.returns = written
        for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            if each.annotation is not None and SHAPED.search(written := ast.unparse(each.annotation)):
                func.parameters[each.arg].annotation = written


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README, and every file that a page leads to."""
    files.append(File.generated(config, "index.md", content=README.read_text()))
    waiting, known = [README, *DOCS.rglob("*.md")], set()
    while waiting:
        page = waiting.pop()
        for path in filter(None, (_target(page, link) for link in _links(page.read_text()))):
            if path in known or path.is_relative_to(DOCS) or path == README:
                continue
            known.add(path)
            files.append(_beside(path, config))
            waiting += [path] if path.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where their files are in the site."""
    here = page.file.src_uri
    lies = ROOT / here.removeprefix(f"{BESIDE}/") if here.startswith(f"{BESIDE}/") else DOCS / here
    lies = README if here == "index.md" else lies

    def moved(link: re.Match[str]) -> str:
        path = _target(lies, link[1])
        return link[1] if path is None else relpath(_place(path), str(Path(here).parent))

    parts = CODE.split(markdown)
    return "".join(part if i % 2 else LINK.sub(moved, part) for i, part in enumerate(parts))


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Draw formulas, and link the names in docstrings."""
    return ROLE.sub(_name, FORMULA.sub(_formula, content))


def _fenced(doctest: re.Match[str]) -> str:
    indent = doctest[0][: len(doctest[0]) - len(doctest[0].lstrip())]
    return f"{indent}```pycon\n{doctest[0].rstrip()}\n{indent}```\n"


def _links(markdown: str) -> list[str]:
    return LINK.findall("".join(CODE.split(markdown)[::2]))


def _target(page: Path, link: str) -> Path | None:
    """The file that a link of a page leads to; ``None`` if it leads out of the repository, or nowhere."""
    path = (page.parent / link).resolve()
    if "://" in link or not path.is_relative_to(ROOT) or not path.exists():
        return None
    return path / "README.md" if (path / "README.md").exists() else path


def _place(path: Path) -> str:
    """Where a file of the repository is in the site, as the name of its source."""
    if path == README:
        return "index.md"
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = f"{BESIDE}/{path.relative_to(ROOT).as_posix()}"
    return f"{name}/index.md" if path.is_dir() else f"{name}.md" if path.suffix in SOURCE else name


def _beside(path: Path, config: MkDocsConfig) -> File:
    """A file from outside of ``docs``."""
    if not path.is_dir() and path.suffix not in SOURCE:
        return File.generated(config, _place(path), abs_src_path=str(path))
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        text = "\n".join(f"- `{each.name}`" for each in sorted(path.iterdir()) if not each.name.startswith(("_", ".")))
    else:
        text = f"``````{SOURCE[path.suffix]}\n{path.read_text()}\n``````"
    return File.generated(config, _place(path), content=f"---\nsearch:\n  exclude: true\n---\n# {name}\n\n{text}\n")


def _formula(found: re.Match[str]) -> str:
    drawn = convert(html.unescape(found[2]).strip(), display="block" if found[1] == "div" else "inline")
    return drawn.replace("<mi>&#x0007E;</mi>", "<mo>∼</mo>")  # "is distributed as" is a relation


def _name(role: re.Match[str]) -> str:
    short, name = role.groups()
    shown = name.rpartition(".")[2] if short else name
    return f'<autoref identifier="{name}" optional><code>{shown}</code></autoref>'
