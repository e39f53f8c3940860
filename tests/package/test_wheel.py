"""The wheel as a stranger gets it: what is in it, and that it works beside the core dependencies alone."""

import os
import re
import resource
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.process

ROOT = Path(__file__).parent.parent.parent
MAX_MODULES, MAX_LINES = 12, 22_600
"""18,000 lines are wanted (LOG.md, "The wheel has 21,000 lines")."""
MAX_IMPORT_COST, MAX_HELP_SECONDS = 1.15, 0.5
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
PUBLIC = "import lbdrop; [getattr(lbdrop, name) for name in lbdrop.__all__]"
HINT = "experiments: want a checkout of lbdrop, got an installed package, which has none; run git clone"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy that has everything which must not get in."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__", "results")
    for folder in ("lbdrop", "experiments", "benchmarks"):
        shutil.copytree(ROOT / folder, source / folder, ignore=ignored)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    done = subprocess.run([sys.executable, "-c", BUILD, out], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    return ZipFile(wheel).namelist()


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment that holds the wheel, links to what it requires without an extra, and nothing else."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(home, symlinks=os.name != "nt", with_pip=False)
    (packages,) = home.glob("lib/python*/site-packages")
    with ZipFile(wheel) as archive:
        archive.extractall(packages)
    (metadata,) = packages.glob("lbdrop-*.dist-info")
    for found in _required(Distribution.at(metadata)):
        for name in _top_level(found):
            if not (packages / name).exists():
                (packages / name).symlink_to(Path(str(found.locate_file(name))))
    return home / "bin" / "python"


def _required(of: Distribution) -> list[Distribution]:
    """All that it requires, at one remove or several."""
    found: dict[str, Distribution] = {}
    wanted = [of]
    while wanted:
        for text in wanted.pop().requires or []:
            requirement = Requirement(text)
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
                continue
            try:
                found[name] = distribution(name)
            except PackageNotFoundError:  # what another platform's torch brings
                continue
            wanted.append(found[name])
    return list(found.values())


def _top_level(found: Distribution) -> Iterator[str]:
    tops = {file.parts[0] for file in found.files or []}
    yield from (top for top in tops if top not in ("..", "__pycache__") and Path(str(found.locate_file(top))).exists())


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In an empty environment; isolated, so that no folder but the installed packages is searched."""
    environment = {"PATH": "", "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    return subprocess.run([python, "-I", *arguments], env=environment, capture_output=True, text=True, check=False)


def cpu_seconds(python: Path, *arguments: str) -> float:
    """User and system time of one process that succeeds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = run(python, *arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# ------------------------------------------------------------------------------------------------------------- contents


def test_wheel_holds_the_package_and_nothing_beside_it(names: list[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert "lbdrop" in tops
    assert [re.sub(r"-[\d.]+\.", "-N.", top) for top in tops - {"lbdrop"}] == ["lbdrop-N.dist-info"]
    assert not [name for name in names if "experiments" in name]


def test_wheel_holds_types_and_the_files_of_the_service(names: list[str]) -> None:
    assert "lbdrop/py.typed" in names
    data = [path.relative_to(ROOT).as_posix() for path in (ROOT / "lbdrop" / "serve").iterdir() if path.suffix != ".py"]
    wanted = [name for name in data if name.endswith((".html", ".css", ".js"))]
    assert wanted
    assert set(wanted) <= set(names)


def test_wheel_is_small_enough_to_read(wheel: Path, names: list[str]) -> None:
    modules = [name for name in names if re.fullmatch(r"lbdrop/\w+\.py", name)]
    assert len(modules) <= MAX_MODULES, modules
    with ZipFile(wheel) as archive:
        lines = sum(archive.read(name).count(b"\n") for name in names if name.endswith(".py"))
    assert 5_000 < lines <= MAX_LINES


# ------------------------------------------------------------------------------------------------------------ installed


def test_environment_lacks_every_package_of_an_extra(installed: Path) -> None:
    done = run(installed, "-c", "import lightning")
    assert "No module named 'lightning'" in done.stderr
    for name in ("polars", "scipy", "safetensors", "sklearn", "matplotlib", "transformers", "fastapi", "experiments"):
        assert f"No module named '{name}'" in run(installed, "-c", f"import {name}").stderr


def test_every_public_name_loads_with_core_dependencies_alone(installed: Path) -> None:
    done = run(installed, "-c", PUBLIC)
    assert done.returncode == 0, done.stderr
    assert run(installed, "-c", "import lbdrop; print(lbdrop.__file__)").stdout.startswith(str(installed.parent.parent))


def test_import_costs_little_more_than_torch(installed: Path) -> None:
    ours, torch = "import lbdrop; lbdrop.Objective, lbdrop.convert, lbdrop.predict", "import torch"
    cpu_seconds(installed, "-c", ours)  # compiles
    costs: list[tuple[float, float]] = []
    for _ in range(
        6
    ):  # the least of several, since others share the machine; more of them only where that is not enough
        costs.append((cpu_seconds(installed, "-c", ours), cpu_seconds(installed, "-c", torch)))
        least, least_of_torch = (min(column) for column in zip(*costs, strict=True))
        if least <= MAX_IMPORT_COST * least_of_torch:
            return
    raise AssertionError(f"want at most {MAX_IMPORT_COST} × {least_of_torch:.2f} s, got {least:.2f} s")


def test_help_waits_for_no_torch(installed: Path) -> None:
    shown = run(installed, "-m", "lbdrop", "--help").stdout
    assert min(cpu_seconds(installed, "-m", "lbdrop", "--help") for _ in range(3)) < MAX_HELP_SECONDS
    assert all(verb in shown for verb in ("demo", "report", "rates", "doctor", "recommend", "data", "reproduce"))


@pytest.mark.parametrize("command", ["demo", "report records", "reproduce toy"])
def test_command_of_the_laboratory_says_in_one_line_how_to_get_it(installed: Path, command: str) -> None:
    done = run(installed, "-m", "lbdrop", *command.split())
    assert done.returncode == 1
    assert done.stderr.startswith(HINT)
    assert len(done.stderr.strip().splitlines()) == 1
    assert not done.stdout
