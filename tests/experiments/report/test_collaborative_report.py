"""Recommender runs in one report: numbers as numpy's, rates from validation, the paper's table as printed, a whole page."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from experiments.collaborative import chapter as collaborative
from experiments.collaborative.chapter_summary import summarise
from experiments.collaborative.record import GRIDS, PUBLISHED, RIVALS, ROWS, read
from experiments.report.page import document
from experiments.report.script import SCRIPT
from lbdrop.cli import app
from lbdrop.errors import DropoutError

RATES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
Run = dict[str, Any]


def fake(method: str, seed: int = 0, rate: float | None = None, level: float = 0.0, dataset: str = "netflix") -> Run:
    """A run as it might have come out; ``level`` shifts its measures."""
    random = np.random.default_rng([seed, sorted(ROWS).index(method), round(10 * (rate or 0))])
    learned, network = method.startswith("sivae"), method not in RIVALS

    def measures() -> dict[str, Any]:
        mean = {n: float(v + level + 0.001 * random.normal()) for n, v in
                (("recall@20", 0.35), ("recall@50", 0.44), ("ndcg@100", 0.38))}  # fmt: skip
        return {
            "mean": mean,
            "standard_error": dict.fromkeys(mean, 0.0012),
            "users": 40_000,
            "coverage": 0.4,
            "popularity": 0.9,
        }

    by = [{"items": 10, "likes": 5.0 * i, "keep": 0.3 + 0.02 * i, "standard_deviation": 0.01} for i in range(20)]
    rates = {
        "per": "item" if method == "sivae-lbd" else "model",
        "keep": 0.42,
        "by_popularity": by if method == "sivae-lbd" else None,
    }
    history = [
        {"epoch": e, "loss": 9.0, "nll": 8.0, "kl": 1.0, "mask_kl": 0.1, "beta": 0.1, "keep": 0.5, "seconds": 1.0,
         "ndcg@100": 0.3 + 0.001 * e} for e in range(1, 41)
    ]  # fmt: skip
    return {
        "experiment": "collaborative", "name": "x", "dataset": dataset, "method": method, "label": f"<{method}>" + (f", rate {rate:g}" if rate is not None else ""),
        "seed": seed, "rate": rate, "settings": {"method": method, "epochs": 40, "dropout": "learned" if learned else "fixed", "gamma": None},
        "protocol": f"{dataset}; 40 epochs", "provenance": {"commit": "abc", "date": "2026-01-01", "hardware": "a machine", "versions": {}},
        "data": {"train_users": 383_170, "validation_users": 40_000, "test_users": 40_000, "items": 17_767},
        "validation": measures(), "test": measures(),
        "masks": {"at_test": 10 if learned else 0} if network else None,
        "choice": None if network else {"by": "validation", "tried": [{}, {}], "chosen": {"regularisation": 500.0}},
        "history": history if network else [], "best": {"epoch": 30, "beta": 0.15, "keep": 0.5} if network else None,
        "rates": rates if learned or rate else None,
        "examples": [{"user": 3, "items": 14, "has": [5, 7], "shown": [{"item": 9, "held_out": True}, {"item": 2, "held_out": False}], "held_out": 3}],
        "seconds": {"train": 60.0, "per_epoch": 1.0, "evaluate": 1.0}, "peak_bytes": 2**30,
    }  # fmt: skip


def table_of_runs(seeds: int = 3, dataset: str = "netflix") -> list[Run]:
    """Everything; in both grids 0.3 is the best rate, and learned rates are better still."""
    others = [fake(method, seed, level=0.01 * method.startswith("sivae-lbd"), dataset=dataset)
              for method in ROWS if method not in GRIDS for seed in range(seeds if method not in RIVALS else 1)]  # fmt: skip
    grids = [fake(encoder, seed, rate, 0.005 * (rate == 0.3), dataset) for encoder in GRIDS for rate in RATES
             if (encoder, rate) != ("vae-drop", 0.0) for seed in range(seeds)]  # fmt: skip
    return [run | {"file": "fake.json"} for run in others + grids]


def save(folder: Path, runs: list[Run]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, run in enumerate(runs):
        (folder / f"{number}.json").write_text(json.dumps({k: v for k, v in run.items() if k != "file"}))
    return folder


def command(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    return result.exit_code, result.output


# ------------------------------------------------------------------------------------------------------------- numbers


def test_standard_errors_are_over_seeds_or_for_one_seed_over_users():
    runs = table_of_runs()
    rows = summarise(runs)["datasets"]["netflix"]["rows"]
    values = np.array([run["test"]["mean"]["ndcg@100"] for run in runs if run["method"] == "sivae-lbd"])
    found = rows["sivae-lbd"]["test"]["ndcg@100"]
    assert found["mean"] == pytest.approx(values.mean())
    assert found["se"] == pytest.approx(values.std(ddof=1) / 3**0.5)
    assert (found["over"], rows["ease"]["test"]["ndcg@100"]["over"]) == ("seeds", "users")
    assert rows["ease"]["test"]["ndcg@100"]["se"] == 0.0012


def test_rate_of_a_grid_is_chosen_on_validation_alone():
    runs = table_of_runs()
    for run in runs:
        if run["method"] == "vae-drop" and run["rate"] == 0.9:
            run["test"]["mean"]["ndcg@100"] = 0.99
    found = summarise(runs)
    grid = found["datasets"]["netflix"]["grids"]["vae-drop"]
    assert (grid["chosen"], grid["rate"]) == ("vae-drop@0.3", 0.3)
    assert [point["rate"] for point in grid["points"]] == list(RATES)
    assert grid["points"][0]["key"] == "vae"
    assert any("validation chooses 0.3 of" in s and "on the test users 0.9 is best" in s for s in found["findings"])


def test_differences_are_paired_by_seed_and_have_students_interval():
    runs = table_of_runs()
    ours, theirs = (
        np.array([r["test"]["mean"]["ndcg@100"] for r in runs if (r["method"], r["rate"]) == which])
        for which in (("sivae-lbd-dense", None), ("vae-dense-drop", 0.3))
    )
    (found,) = [d for d in summarise(runs)["datasets"]["netflix"]["differences"] if d["method"] == "sivae-lbd-dense"]
    wanted = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert found["against"] == "vae-dense-drop@0.3"
    assert found["measures"]["ndcg@100"]["interval"] == pytest.approx([wanted.low, wanted.high], rel=1e-4)


def test_grid_needs_two_rates_and_a_difference_a_shared_seed():
    runs = [r for r in table_of_runs(1) if r["method"] in ("sivae-lbd", "ease") or r["rate"] == 0.5]
    found = summarise(runs)["datasets"]["netflix"]
    assert found["grids"] == {}
    runs = [r | {"seed": 7 if r["method"].startswith("sivae") else 0} for r in table_of_runs(1)]
    assert summarise(runs)["datasets"]["netflix"]["differences"] == []


def test_papers_numbers_are_as_printed():
    assert PUBLISHED["sivae-lbd"].numbers["netflix"] == pytest.approx({"recall@20": 0.3563, "recall@50": 0.4470, "ndcg@100": 0.3904})  # fmt: skip
    assert PUBLISHED["vae-drop@0.5"].numbers["msd"] == pytest.approx({"recall@20": 0.2636, "recall@50": 0.3621, "ndcg@100": 0.3133})  # fmt: skip
    assert PUBLISHED["vae-iaf"].numbers["ml-20m"]["recall@50"] == pytest.approx(0.5028)
    assert "msd" not in PUBLISHED["slim"].numbers
    assert sum(row.in_the_paper for row in PUBLISHED.values()) == 13


def test_caveats_are_stated():
    runs = table_of_runs()
    said = " ".join(summarise(runs)["caveats"])
    assert "463,170 users where the complete ones have 463,435" in said
    assert "5 of 34 rows have one seed" in said
    assert "trained equally long" not in said
    runs[0]["settings"] = runs[0]["settings"] | {"epochs": 20}
    runs[1]["protocol"] += ", scaled from 100 epochs"
    said = " ".join(summarise(runs)["caveats"])
    assert "20, 40 epochs" in said
    assert "epochs 20, 40" in said
    assert "chedules are scaled" in said


# --------------------------------------------------------------------------------------------------------------- files


def test_numbers_in_the_markdown_are_those_of_the_records():
    runs = table_of_runs(1)
    text = collaborative.markdown(summarise(runs))
    for run in runs:
        lines = [line for line in text.splitlines() if line.startswith(f"| {run['label']} |")]
        assert lines, run["label"]
        for value in run["test"]["mean"].values():
            assert f"{value:.4f} ± 0.0012" in " ".join(lines)
    (ours,) = [line for line in text.splitlines() if line.startswith("| <sivae-lbd> | 1 |")]
    assert ours.endswith("| 0.3563 | 0.4470 | 0.3904 |")


def test_page_loads_nothing_and_escapes_text_of_records():
    page = document([collaborative.chapter(summarise(table_of_runs()), {"netflix": {"9": "Heat <1995>", "5": "Jaws"}})])
    page = page.replace(SCRIPT, "")
    assert not re.search(r"(src|href)=\"http|@import|url\(", page)
    assert "<sivae-lbd>" not in page
    assert "✓ Heat &lt;1995&gt;" in page
    assert "<li>Jaws</li>" in page
    assert "<li>7</li>" in page
    for wanted in (
        "validation NDCG@100,\u00a0%",
        "mean keep rate",
        "from the least to the most popular",
        "drop rate",
        "12 more",
    ):
        assert wanted in page
    assert page.count("<section ") == page.count("</section>") == 7


def test_learned_rates_are_drawn_in_the_grid_where_they_ended():
    found = summarise(table_of_runs())["datasets"]["netflix"]
    from experiments.collaborative.chapter_charts import grid, learned_points

    points = learned_points("vae-drop", found["rows"])
    assert [point["row"]["key"] for point in points] == ["sivae-lbd", "sivae-lbd-one", "sivae-lbd-tuned", "sivae-concrete", "sivae-gaussian"]  # fmt: skip
    assert points[0]["x"] == pytest.approx(0.58)
    drawn = grid("title", "vae-drop", found["grids"]["vae-drop"], found["rows"])
    assert drawn.count("<circle") == len(RATES) + 5
    assert drawn.count('class="here') == 1


@pytest.mark.process
def test_command_writes_its_files_for_several_data_sets_and_can_be_repeated(tmp_path: Path):
    folder = save(tmp_path / "runs", table_of_runs(2) + table_of_runs(1, "ml-1m"))
    for _ in range(2):
        code, output = command(folder, "--out", folder)
        assert code == 0, output
    assert {path.name for path in folder.glob("*") if not path.name[0].isdigit()} == {
        "index.html",
        "table.md",
        "summary.json",
        "grid.png",
    }
    summary = json.loads((folder / "summary.json").read_text())
    assert list(summary["datasets"]) == ["netflix", "ml-1m"]
    assert any(sentence.startswith("ml-1m: ") for sentence in summary["findings"])
    assert "## ml-1m" in (folder / "table.md").read_text()


def test_figure_needs_a_grid(tmp_path: Path):
    folder = save(tmp_path, [fake("ease"), fake("vae")])
    assert command(folder, "--out", tmp_path / "report")[0] == 0
    assert not (tmp_path / "report" / "grid.png").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r.pop("test"), "test"),
        (lambda r: r["test"]["mean"].update({"ndcg@100": float("nan")}), "test.mean.ndcg@100"),
        (lambda r: r["validation"].pop("standard_error"), "validation.standard_error"),
        (lambda r: r.update(seed="0"), "seed"),
        (lambda r: r.pop("rates"), "rates"),
        (lambda r: r.update(history=None), "a list as history"),
    ],
)
def test_wrong_record_is_an_error_with_its_file(change: Callable[[Run], object], said: str, tmp_path: Path):
    run = fake("vae")
    change(run)
    with pytest.raises(DropoutError, match=re.escape(said)) as error:
        read([save(tmp_path, [run])])
    assert "0.json" in str(error.value)


def test_duplicate_runs_and_data_without_titles_are_refused(tmp_path: Path):
    with pytest.raises(DropoutError, match="same data, method, rate and seed"):
        read([save(tmp_path / "twice", [fake("vae"), fake("vae")])])
    code, output = command(save(tmp_path / "one", [fake("vae")]), "--out", tmp_path / "out", "--data", tmp_path / "one")
    assert code == 1
    assert "want a prepared data set" in output
