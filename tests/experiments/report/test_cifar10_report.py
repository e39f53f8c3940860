"""Many runs in one report: numbers as numpy's, the rate from validation, a page that needs nothing else."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

from experiments.cifar10 import chapter as cifar10
from experiments.cifar10 import tables
from experiments.cifar10.record import read
from experiments.cifar10.summary import difference, summarise, verdict
from experiments.report import charts
from experiments.report.page import document
from experiments.report.script import SCRIPT
from experiments.report.statistics import stat, t_95
from lbdrop.cli import app
from lbdrop.errors import DropoutError

LABELS = {
    "lbd-unit": "LBD, a rate per unit", "lbd-layer": "LBD, a rate per layer", "lbd-model": "LBD, one rate",
    "concrete": "Concrete, a rate per unit", "gaussian": "Gaussian, a variance per unit", "mc": "MC dropout",
    "regular": "regular dropout",
}  # fmt: skip
GRID = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
Run = dict[str, Any]


def fake(method: str, seed: int, rate: float = 0.5, level: float = 0.0) -> Run:
    """A run as it might have come out; ``level`` shifts its accuracy."""
    random = np.random.default_rng([seed, sorted(LABELS).index(method), round(rate * 10)])

    def near(value: float, spread: float = 0.002) -> float:
        return float(value + spread * random.normal())

    def scores() -> dict[str, float]:
        wrong = near(0.08 - level)
        return {
            "accuracy": 1 - wrong, "nll": near(0.25 - level), "brier": near(0.12 - level), "ece": near(0.03), "aurc": near(0.01),
            "auroc_misclassification": near(0.92), "pavpu_mean_entropy": near(0.8, 0.01), "pavpu_sweep": near(0.85, 0.01),
        }  # fmt: skip

    t = np.linspace(0, 1, 11)
    count = [0, 0, 3, 12, 40, 60, 80, 110, 150, 200, 260, 350, 500, 900, 7335]
    middle = (np.arange(15) + 0.5) / 15
    units = {"lbd-unit": 4096, "concrete": 4096, "gaussian": 4096}.get(method, 1)
    rates = np.clip(random.normal(0.35, 0.1, units), 0, 1) if method not in ("mc", "regular") else np.full(1, rate)
    layer = {"mean": float(rates.mean()), "min": float(rates.min()), "max": float(rates.max()),
             "counts": np.histogram(rates, 20, (0, 1))[0].tolist()}  # fmt: skip
    images = [
        {"index": int(i), "entropy": near(1.9), "predicted": int(i) % 10, "truth": int(i) % 7}
        for i in random.integers(0, 100, 12)
    ]
    return {
        "file": "fake.json", "experiment": "cifar10", "method": method, "label": LABELS[method], "seed": seed, "recipe": "fast",
        "settings": {"method": method, "seed": seed, "rate": rate, "epochs": 12, "size": 64, "batch": 256},
        "protocol": "VGG19, 64×64 pixels; 12 epochs",
        "history": [{"epoch": e, "rates": dict.fromkeys(("classifier.2", "classifier.5"), rate - 0.01 * (e + 1 + seed))} for e in range(3)],
        "provenance": {"commit": "abc", "date": "2026-01-01", "hardware": "a machine", "versions": {"torch": "2"}},
        "validation": scores(), "test": scores(),
        "pavpu_curve": {"t": t.tolist(), "pavpu": [near(0.1 + 0.8 * v**0.4, 0.004) for v in t]},
        "reliability": {
            "confidence": [float(m) if n else None for m, n in zip(middle, count, strict=True)],
            "accuracy": [near(float(m) * 0.95, 0.01) if n else None for m, n in zip(middle, count, strict=True)],
            "count": count,
        },
        "ood": {"set": "Tiny-ImageNet validation without overlapping classes", "count": 8550, "entropy": near(0.9), "mutual_information": near(0.88)},
        "corruptions": {
            kind: [{"severity": s, "accuracy": near(0.92 - 0.1 * s, 0.01), "ece": near(0.03 * s)} for s in range(1, 6)]
            for kind in ("gaussian noise", "gaussian blur", "jpeg")
        },
        "rates": {"classifier.2": layer, "classifier.5": layer},
        "certainty": {"least": images, "most": [i | {"entropy": 1e-5} for i in images]},
        "seconds": {"train": 30.0, "per_epoch": [3.0, 2.0], "predict": 2.0}, "peak_bytes": 3 * 2**30,
    }  # fmt: skip


def table_of_runs(seeds: int = 3) -> list[Run]:
    others = [
        fake(method, seed, level=0.004 * method.startswith("lbd"))
        for method in LABELS
        if method != "mc"
        for seed in range(seeds)
    ]
    return others + [fake("mc", seed, rate) for rate in GRID for seed in range(seeds)]


def save(folder: Path, runs: list[Run]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for run in runs:
        (folder / f"{run['method']}-{run['settings']['rate']:g}-{run['seed']}.json").write_text(json.dumps(run))
    return folder


def render(summary: dict[str, Any], images: torch.Tensor | None = None) -> str:
    return document([cifar10.chapter(summary, images)])


def command(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    return result.exit_code, result.output


# ------------------------------------------------------------------------------------------------------------- numbers


def test_means_and_standard_errors_are_numpys():
    runs = table_of_runs()
    row = summarise(runs)["rows"]["concrete"]
    values = np.array([run["test"]["nll"] for run in runs if run["method"] == "concrete"])
    assert row["measures"]["nll"]["mean"] == pytest.approx(values.mean())
    assert row["measures"]["nll"]["se"] == pytest.approx(values.std(ddof=1) / 3**0.5)
    assert row["measures"]["nll"]["n"] == 3
    assert row["measures"]["seconds_per_epoch"]["mean"] == 2.5
    assert row["rates"]["classifier.2"]["mean"]["n"] == 3
    assert sum(row["rates"]["classifier.2"]["counts"]) == 3 * 4096


def test_rows_are_methods_and_fixed_rates_in_order():
    rows = summarise(table_of_runs()[::-1])["rows"]
    fixed = [f"mc@{rate:g}" for rate in GRID]
    assert list(rows) == ["lbd-unit", "lbd-layer", "lbd-model", "concrete", "gaussian", *fixed, "regular"]
    assert all(row["seeds"] == [0, 1, 2] for row in rows.values())


def test_rates_over_training_are_means_over_seeds_from_where_they_started():
    rows = summarise(table_of_runs(2))["rows"]
    line = rows["lbd-layer"]["rates_over_training"]["classifier.2"]
    assert line == [[0, 0.5], [1, pytest.approx(0.485)], [2, pytest.approx(0.475)], [3, pytest.approx(0.465)]]
    assert rows["mc@0.5"]["rates_over_training"] == {}
    page = render(summarise(table_of_runs(2)))
    assert "Rates over training" in page
    assert 'data-label="LBD, a rate per layer, from 0.5" data-values="0|0.5 1|0.485 2|0.475 3|0.465"' in page
    bare = [fake("lbd-layer", 0) | {"history": None}]
    assert "Rates over training" not in render(summarise(bare))


def test_learned_rates_from_another_start_are_a_separate_row_without_the_papers_numbers():
    summary = summarise([*table_of_runs(2), *(fake("lbd-unit", seed, 0.1) for seed in range(2))])
    assert summary["rows"]["lbd-unit@0.1"]["label"] == "LBD, a rate per unit, from 0.1"
    assert summary["rows"]["lbd-unit"]["label"] == "LBD, a rate per unit, from 0.5"
    assert [row["key"] for row in tables.paper_rows(summary)].count("lbd-unit") == 1
    assert "lbd-unit@0.1" not in [row["key"] for row in tables.paper_rows(summary)]


def test_self_tuned_rates_have_no_starting_rate():
    tuned = {"method": "lbd-tuned-model", "label": "LBD, self-tuned, one rate"}
    row = summarise([fake("lbd-model", seed, 0.1) | tuned for seed in range(2)])["rows"]["lbd-tuned-model@0.1"]
    assert row["label"] == "LBD, self-tuned, one rate"
    assert [epoch for epoch, _ in row["rates_over_training"]["classifier.2"]] == [1, 2, 3]


def test_fixed_rate_is_chosen_on_validation_and_not_on_test():
    runs = table_of_runs()
    for run in runs:
        if run["method"] == "mc":
            run["validation"]["nll"] = 0.2 + abs(run["settings"]["rate"] - 0.3)
            run["test"]["nll"] = 0.2 + abs(run["settings"]["rate"] - 0.9)
    summary = summarise(runs)
    assert summary["chosen"] == "mc@0.3"
    assert [key for key in summary["shown"] if key.startswith("mc")] == ["mc@0.3", "mc@0.5"]
    assert summary["rows"]["mc@0.3"]["label"] == "MC dropout, rate 0.3"


def test_differences_are_paired_over_shared_seeds():
    ours = [fake("lbd-unit", seed) for seed in (0, 1, 2, 3)]
    theirs = [fake("mc", seed) for seed in (1, 2, 3, 4)]
    found = difference(ours, theirs)
    assert found is not None
    assert found["seeds"] == [1, 2, 3]
    a, b = ([run["test"]["nll"] for run in runs] for runs in (ours[1:], theirs[:3]))
    interval = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert found["measures"]["nll"]["interval"] == pytest.approx([interval.low, interval.high], rel=1e-5)
    assert difference(ours[:1], theirs) is None
    two = difference(ours, theirs[:2])
    assert two is not None
    assert two["measures"]["nll"]["interval"] is None


@pytest.mark.parametrize("freedom", [1, 2, 3, 9, 40])
def test_t_point_is_scipys(freedom: int):
    assert t_95(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-5)


def test_verdict_depends_on_which_direction_is_better():
    above, across = {"interval": [0.1, 0.2]}, {"interval": [-0.1, 0.2]}
    assert (verdict(above, "accuracy"), verdict(above, "nll")) == ("better", "worse")
    assert (verdict(across, "nll"), verdict({"interval": None}, "nll")) == ("level", "too few seeds")


def test_findings_report_losses_like_wins():
    def findings(level: float) -> str:
        runs = [fake("lbd-unit", seed, level=level) for seed in range(3)]
        rivals = [fake(method, seed) for method in ("mc", "concrete", "gaussian") for seed in range(3)]
        return "\n".join(summarise(runs + rivals)["findings"])

    assert "Highest test accuracy: “LBD, a rate per unit, from 0.5”" in findings(0.05)
    assert re.search(r"the fixed rate chosen on validation: better in accuracy", findings(0.05))
    assert "“LBD, a rate per unit, from 0.5” (87" in findings(-0.05)
    assert "is number 4 of 4" in findings(-0.05)
    assert re.search(r"the fixed rate chosen on validation: worse in accuracy", findings(-0.05))


def test_missing_measures_are_left_out_and_counted():
    assert stat([]) is None
    runs = [fake("lbd-unit", seed) for seed in range(3)]
    runs[0]["ood"] = None
    row = summarise(runs)["rows"]["lbd-unit"]
    assert row["measures"]["ood_entropy"]["n"] == 2
    assert "(2 of 3)" in tables.markdown(summarise(runs))


def test_mixed_settings_and_protocols_are_caveats():
    runs = [fake("regular", seed) for seed in range(2)]
    runs[1]["settings"]["epochs"] = 3
    runs[1]["protocol"] = "another"
    caveats = " ".join(summarise(runs)["caveats"])
    assert "epochs 12, 3" in caveats
    assert "2 protocols" in caveats


# ------------------------------------------------------------------------------------------------------------- writing


def test_markdown_has_a_row_for_each_method():
    text = tables.markdown(summarise(table_of_runs()))
    first = next(block for block in text.split("\n\n") if block.startswith("|")).splitlines()
    width = first[0].count("|")
    assert all(line.count("|") == width for line in first)
    assert all(any(label in line for line in first) for label in LABELS.values())
    assert "| 93.47 |" in text
    assert "on validation NLL" in text


def unclosed(html: str) -> list[str]:
    """Tags left open; fails where one is closed that is not the open one."""
    left: list[str] = []
    for closing, tag, empty in re.findall(r"<(/?)([a-z][a-z0-9]*)[^>]*?(/?)>", html):
        if closing:
            assert left.pop() == tag
        elif not empty and tag not in ("meta", "br", "img"):
            left.append(tag)
    return left


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("pictures", [False, True])
def test_page_is_complete_and_loads_nothing(seeds: int, pictures: bool):
    images = torch.randint(0, 256, (100, 3, 32, 32), dtype=torch.uint8) if pictures else None
    html = render(summarise(table_of_runs(seeds)), images)
    html = html.replace(SCRIPT, "")
    assert unclosed(html) == []
    assert not re.search(r"https?://|<link|@import|url\(", html)
    assert len(re.findall(r'src="data:image/png', html)) == 24 * pictures
    assert not re.search(r"\b(nan|inf|None)\b", re.sub(r'src="[^"]*"', "", html))
    assert "prefers-color-scheme: dark" in html


def bare(run: Run) -> None:
    run.update(ood=None, corruptions=None, peak_bytes=None, rates={})
    del run["test"]["auroc_misclassification"]


@pytest.mark.parametrize("change", [bare, lambda run: run.update(method="regular"), lambda run: run.pop("ood")])
def test_runs_with_missing_parts_are_reported(change: Callable[[Run], object]):
    runs = [fake(method, 0) for method in ("lbd-unit", "mc")]
    for run in runs:
        change(run)
    summary = summarise(runs)
    assert "On the test set" in render(summary)
    assert "| method |" in tables.markdown(summary)


def test_text_from_records_is_escaped():
    run = fake("regular", 0) | {"label": "a < b | <b>"}
    summary = summarise([run])
    assert "a &lt; b | &lt;b&gt;" in render(summary)
    assert "a < b \\| <b>" in tables.markdown(summary)


# ------------------------------------------------------------------------------------------------------------- command


def test_command_writes_four_files_and_can_be_repeated_in_one_folder(tmp_path: Path):
    folder = save(tmp_path / "runs", table_of_runs(2))
    for _ in range(2):
        code, output = command(folder, "--out", folder)
        assert code == 0, output
    assert {path.name for path in folder.iterdir() if path.suffix != ".json"} == {"index.html", "table.md", "pavpu.png"}
    summary = json.loads((folder / "summary.json").read_text())
    assert len(summary["runs"]) == 24
    assert summary["runs"][0]["provenance"]["commit"] == "abc"
    assert (folder / "pavpu.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "want JSON"),
        (json.dumps(fake("regular", 0) | {"test": {"accuracy": 0.9}}), "test.nll"),
        (json.dumps(fake("regular", 0) | {"validation": fake("regular", 0)["validation"] | {"nll": float("nan")}}), "validation.nll"),
        (json.dumps(fake("mc", 0) | {"settings": {}}), "settings.rate"),
        (json.dumps(fake("mc", 0) | {"pavpu_curve": {"t": [1], "pavpu": []}}), "pavpu_curve"),
    ],
)  # fmt: skip
def test_foreign_file_is_one_line_with_its_name(tmp_path: Path, content: str, said: str):
    folder = save(tmp_path / "runs", [fake("lbd-unit", 0)])
    (folder / "stranger.json").write_text(content)
    code, output = command(folder, "--out", tmp_path / "out")
    assert code == 1
    assert len(output.strip().splitlines()) == 1
    assert "stranger.json" in output
    assert said in output
    assert not (tmp_path / "out").exists()


def test_wrong_paths_and_doubled_runs_are_named(tmp_path: Path):
    folder = save(tmp_path / "runs", [fake("lbd-unit", 0)])
    assert len(read([folder, folder / "lbd-unit-0.5-0.json"])) == 1  # one file, named twice
    (tmp_path / "empty").mkdir()
    assert "no .json" in command(tmp_path / "empty")[1]
    assert "no such file" in command(tmp_path / "nowhere")[1]
    assert command(folder, "--data", tmp_path / "empty", "--out", tmp_path / "out")[0] == 1
    (folder / "again.json").write_text(json.dumps(fake("lbd-unit", 0)))
    with pytest.raises(DropoutError, match="same method, rate and seed"):
        read([folder])
    (folder / "again.json").write_text(json.dumps(fake("lbd-unit", 1) | {"recipe": "paper"}))
    with pytest.raises(DropoutError, match="fast, paper"):
        read([folder])


def test_best_variant_on_validation_represents_its_method() -> None:
    runs = [fake("mc", seed, 0.3) for seed in range(3)]
    for variant, rate, validation in (("", 0.5, 0.3), ("", 0.1, 0.2), ("-quick", 0.1, 0.1), ("-quick", 0.5, 0.4)):
        for seed in range(3):
            run = fake("lbd-unit", seed, rate)
            run["validation"]["nll"] = validation
            run["test"]["nll"] = 0.5 - validation  # the test set would choose another
            runs.append(run | {"method": f"lbd-unit{variant}", "label": f"LBD{variant}"})
    summary = summarise(runs)
    assert summary["leading"] == ["lbd-unit-quick@0.1", "mc@0.3"]
    assert len(summary["shown"]) == 5
    page = document([cifar10.chapter(summary)])
    assert "All 5 rows" in page
    assert page.partition('class="legend"')[2].partition("</ul>")[0].count("<li ") == 2
    assert not any("from 0.5" in sentence for sentence in summary["findings"])


def test_lines_of_one_colour_have_different_dashes() -> None:
    rows = [{"key": str(n), "label": str(n), "family": family} for n, family in enumerate(["lbd"] * 5 + ["mc"] * 2)]
    found = charts.distinct(rows)
    looks = [(charts.family(row), row["dash"]) for row in found]
    assert len(set(looks)) == len(looks)
    assert found[0]["dash"] == found[5]["dash"] == ""
