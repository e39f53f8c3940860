"""The package is layers: a file knows what is below its layer, and within a folder no file knows itself by a detour."""

import ast
from functools import cache
from pathlib import Path

import lbdrop

PACKAGE = Path(lbdrop.__file__).parent
LAYERS = (
    ("errors",),
    ("_torch", "io"),
    ("sources",),
    ("dropout",),
    ("estimators", "masks", "rivals"),
    ("guards",),
    ("passes", "sites"),
    ("step",),
    ("rules",),
    ("objective", "prediction"),
    ("integrations", "metrics"),
    ("recommend",),
    ("serve",),
    ("cli",),
    ("__init__", "__main__"),
)
"""From the bottom to the top; a name is a file or a folder of the package, and names of one layer know nothing of each other."""
READING_PATH = ("estimators.py", "dropout.py", "step.py", "rules/bound.py", "objective.py")
BALANCED_NOISE = ("rules/balanced.py", "rules/measurements.py", "rules/first_epoch.py")


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


@cache
def imports(path: Path, at_once: bool = False) -> set[str]:
    """The modules of the package that a file imports, anywhere or when it is itself imported, but for types alone."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            inside = {name for name in names if is_module(name)}  # files of a folder, whose __init__ is of no matter
            found |= names if inside == names else {node.module, *names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if not (at_once and isinstance(node, ast.FunctionDef)):
            waiting += ast.iter_child_nodes(node)
    return found


def module_files() -> dict[str, Path]:
    """Every file of the package by its dotted name."""
    return {
        ".".join(("lbdrop", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }


def part(module: str) -> str:
    """The file or folder at the top of the package that a module is or is in."""
    return [*module.split("."), "__init__"][1]


def test_every_file_of_the_package_is_in_a_layer() -> None:
    named = [name for layer in LAYERS for name in layer]
    there = {path.stem for path in PACKAGE.glob("*.py")} | {path.parent.name for path in PACKAGE.glob("*/*.py")}
    assert sorted(named) == sorted(there)


def test_imports_point_to_lower_layers() -> None:
    height = {name: level for level, layer in enumerate(LAYERS) for name in layer}
    files = module_files()
    upward = [
        f"{module} imports {other}"
        for module, path in files.items()
        for other in imports(path) & files.keys() - {"lbdrop"}
        if part(other) != part(module) and height[part(other)] >= height[part(module)]
    ]
    assert not upward, upward


def test_no_file_imports_itself_by_a_detour() -> None:
    files = module_files()
    below = {
        name: {o for o in imports(path, at_once=True) & files.keys() if o != "lbdrop"} - {name}
        for name, path in files.items()
    }

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " → ".join((*way, name))
        for other in sorted(below[name]):
            visit(other, (*way, name))
        below[name] = set()  # looked at

    for name in files:
        visit(name, ())


def test_package_knows_no_experiments() -> None:
    """The command line alone opens the door to them, by a name in a string."""
    for path in module_files().values():
        assert not [name for name in imports(path) if name.startswith(("experiments", "benchmarks", "tests"))], path


def test_method_can_be_read_in_one_sitting() -> None:
    lines = {name: len((PACKAGE / name).read_text().splitlines()) for name in (*READING_PATH, *BALANCED_NOISE)}
    assert sum(lines[name] for name in READING_PATH) <= 900, lines
    assert sum(lines[name] for name in BALANCED_NOISE) <= 550, lines


def test_layers_hold_nothing_of_a_rule() -> None:
    model = lbdrop.convert(lbdrop.dropout.nn.Sequential(lbdrop.dropout.nn.Dropout(0.3)), verbose=False)
    assert list(model.state_dict()) == ["0.logit"]


def test_map_names_everything_public() -> None:
    for name in ("LearnableDropout", "Objective", "convert", "bake", "prune", "predict", "parameter_groups", "masks"):
        assert hasattr(lbdrop, name)
