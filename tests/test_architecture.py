"""Dependencies point one way: experiments and commands use the library, the library never them."""

import ast
from pathlib import Path

import pytest

import lbdrop

PACKAGE = Path(lbdrop.__file__).parent
CORE = ["errors", "dropout", "masks", "estimators", "passes", "precision", "priors", "graph", "watch", "step", "rules", "objective",
        "attention", "recurrent", "rivals", "huggingface", "lora", "finite", "processes", "convert", "bake", "prune", "predict"]  # fmt: skip


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
    names |= {f"{n.module}.{a.name}" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
    return names | {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}


@pytest.mark.parametrize("name", CORE)
def test_the_core_imports_nothing_that_is_built_on_it(name: str) -> None:
    built_on_it = (
        "lbdrop.cli",
        "experiments.report",
        "experiments.demo.run",
        "lbdrop.metrics",
        "experiments.vision",
        "lbdrop.recommend",
        "lbdrop.integrations",
        "lbdrop.serve",
    )
    assert not [other for other in imported(PACKAGE / f"{name}.py") if other.startswith((*built_on_it, "experiments"))]


def test_only_commands_know_the_experiments() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name != "cli":
            assert not [other for other in imported(path) if other.startswith("experiments")], path


def test_the_map_names_everything_public() -> None:
    for name in ("LearnableDropout", "Objective", "convert", "bake", "prune", "predict", "parameter_groups", "masks"):
        assert hasattr(lbdrop, name)
