"""Any set of runs on one page: a chapter for each kind, a line for what is none, an error that names what is damaged."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from experiments.rates.chapter import summarise
from experiments.report import compose
from experiments.report.benchmarks import tables_of
from experiments.report.page import Chapter
from lbdrop.cli import app

ROOT = Path(__file__).parent.parent.parent.parent
RATES = ROOT / "experiments/rates/results/uci-boston.json"
TOY = ROOT / "experiments/toy/results/toy.json"
OVERHEAD = ROOT / "benchmarks/results/overhead-vgg19-cpu.json"


def command(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)], env={"COLUMNS": "200"})
    return result.exit_code, result.output


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


@pytest.mark.process
def test_kinds_may_be_mixed_and_have_a_chapter_each(tmp_path: Path):
    code, output = command(RATES, TOY, OVERHEAD, ROOT / "experiments/collaborative/results", "--out", tmp_path)
    assert code == 0, output
    page = (tmp_path / "index.html").read_text()
    for title in (
        "Collaborative filtering",
        "Learned rates beside the grid",
        "Can the gradient be trusted?",
        "Benchmarks",
    ):
        assert f"<h1>{title}" in page
    assert page.index("Collaborative") < page.index("Learned rates beside") < page.index("Can the gradient")
    assert (tmp_path / "collaborative" / "table.md").is_file()
    assert "torch-uncertainty" in output
    assert "Concrete, α₁" in output


def test_unknown_json_is_named_once_in_the_terminal_and_on_the_page(tmp_path: Path):
    runs = tmp_path / "runs"
    runs.mkdir()
    shutil.copy(TOY, runs)
    (runs / "list.json").write_text("[1]")
    (runs / "odd.json").write_text('{"experiment": "<b>odd</b>"}')
    (runs / "summary.json").write_text("{}")  # what a report left
    code, output = command(runs, "--out", tmp_path / "out")
    assert code == 0, output
    page = (tmp_path / "out" / "index.html").read_text()
    for name, why in (("list.json", "a JSON list"), ("odd.json", "experiment '<b>odd</b>'")):
        (said,) = [line for line in output.splitlines() if name in line]
        assert why in said
        assert page.count(name) == 1
    assert "<b>odd" not in page
    assert "summary.json" not in output


@pytest.mark.parametrize(
    ("content", "said"), [("{}", "without experiment"), ("[1]", "a JSON list"), ("{", "want JSON")]
)
def test_folder_without_records_is_one_line(tmp_path: Path, content: str, said: str):
    (tmp_path / "stranger.json").write_text(content)
    code, output = command(tmp_path, "--out", tmp_path / "out")
    assert code == 1
    assert len(output.strip().splitlines()) == 1
    assert "stranger.json" in output
    assert said in output
    assert not (tmp_path / "out").exists()


def drop(*path: str) -> Callable[[Any], None]:
    def change(record: Any) -> None:
        for name in path[:-1]:
            record = record[0] if isinstance(record := record[name], list) else record
        del record[path[-1]]

    return change


@pytest.mark.parametrize(
    ("source", "change", "said"),
    [
        (RATES, drop("records", "history"), "records[0].history"),
        (RATES, drop("records", "test", "masks"), "records[0].test.masks"),
        (TOY, drop("trace", "exact"), "trace.exact"),
        (TOY, lambda record: record["summary"]["arm"]["alpha_1"].update(mean_mse="low"), "mean_mse"),
        (OVERHEAD, lambda record: record.update(findings="none"), "findings"),
    ],
)  # fmt: skip
def test_damaged_record_is_one_line_with_file_and_place(
    tmp_path: Path, source: Path, change: Callable[[Any], None], said: str
):
    record = read(source)
    change(record)
    (tmp_path / "damaged.json").write_text(json.dumps(record))
    code, output = command(tmp_path, "--out", tmp_path / "out")
    assert code == 1
    assert len(output.strip().splitlines()) == 1
    assert "damaged.json" in output
    assert said in output


def test_new_kind_registers_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import sys
    from types import ModuleType

    module = ModuleType("maps")
    chapter = Chapter("Maps", "Of scenes.", [])
    module.part = lambda files, data: compose.Part(chapter, files={"map.txt": str(len(files)).encode()})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "maps", module)
    kind = compose.Kind("maps", "maps", "vision", lambda record: record.get("experiment") == "maps")
    monkeypatch.setattr(compose, "KINDS", (*compose.KINDS, kind))
    for name in "ab":
        (tmp_path / f"{name}.json").write_text('{"experiment": "maps"}')
    code, output = command(tmp_path, "--out", tmp_path / "out")
    assert code == 0, output
    assert (tmp_path / "out" / "map.txt").read_text() == "2"
    assert "<h1>Maps</h1>" in (tmp_path / "out" / "index.html").read_text()


def test_data_of_several_kinds_have_a_folder_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import sys
    from types import ModuleType

    seen: dict[str, Path | None] = {}

    def module(name: str) -> ModuleType:
        def part(files: Any, data: Path | None) -> compose.Part:
            seen[name] = data
            return compose.Part(Chapter(name, "", []))

        made = ModuleType(name)
        made.part = part  # type: ignore[attr-defined]
        return made

    def kind(name: str) -> compose.Kind:
        monkeypatch.setitem(sys.modules, name, module(name))
        return compose.Kind(name, name, "demo", lambda record: record.get("experiment") == name, f"{name}-data")

    monkeypatch.setattr(compose, "KINDS", (kind("first"), kind("second")))
    data = tmp_path / "data"
    (data / "first-data").mkdir(parents=True)
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, name in zip(files, ("first", "second"), strict=True):
        file.write_text(json.dumps({"experiment": name}))
    compose.compose(files, data)
    assert seen == {"first": data / "first-data", "second": None}
    compose.compose(files[1:], data)
    assert seen["second"] == data


def test_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compose, "KINDS", (compose.Kind("toy", "no_such_package", "demo", lambda record: True),))
    code, output = command(TOY, "--out", tmp_path)
    assert code == 1
    assert "no_such_package: package not found; pip install 'lbdrop[demo]'" in output


# --------------------------------------------------------------------------------------------------------------- rates


def test_differences_to_the_grid_are_paired_by_seed_with_the_rate_from_validation():
    records = read(RATES)["records"]
    by = {(r["contestant"], r["seed"]): r for r in records}
    seeds = sorted({seed for _, seed in by})
    fixed = sorted({name for name, _ in by if name == "none" or re.fullmatch(r"fixed-[\d.]+", name)})
    assert any(
        name.endswith("retrained") for name, _ in by
    )  # of those who have seen the validation examples nobody may be picked
    picked = [min((by[name, seed] for name in fixed), key=lambda r: r["validation"]["masks"]["nll"]) for seed in seeds]
    ours = [by["tuned-layer", seed]["test"]["masks"]["nll"] for seed in seeds]
    wanted = stats.ttest_rel(ours, [r["test"]["masks"]["nll"] for r in picked]).confidence_interval(0.95)
    (row,) = [row for row in summarise(records) if row["key"] == "tuned-layer"]
    assert row["against"]["masks"]["interval"] == pytest.approx([wanted.low, wanted.high], rel=1e-4)


def test_rates_over_training_are_means_over_seeds():
    records = read(RATES)["records"]
    (row,) = [row for row in summarise(records) if row["key"] == "concrete"]
    runs = [r["history"] for r in records if r["contestant"] == "concrete"]
    for layer, line in row["over_training"].items():
        assert [epoch for epoch, _ in line] == [entry["epoch"] for entry in runs[0]]
        assert [rate for _, rate in line] == pytest.approx(
            np.mean([[e["rates"][layer] for e in run] for run in runs], axis=0)
        )


# ---------------------------------------------------------------------------------------------------------- benchmarks


def test_mappings_with_numbers_in_a_benchmark_become_tables():
    found = dict(tables_of(read(OVERHEAD)))
    assert set(found) == {"training step, contestants", "prediction, 20 masks, contestants"}
    assert found["training step, contestants"]["nn.Dropout"]["time_ratio"] == 1.0
    listed = dict(tables_of([{"scale": "none", "keep": 0.3, "estimators": {"arm": {"variance": 0.2}}}]))
    assert listed[""] == {"scale none, keep 0.3": {"scale": "none", "keep": 0.3}}
    assert listed["scale none, keep 0.3, estimators"] == {"arm": {"variance": 0.2}}
