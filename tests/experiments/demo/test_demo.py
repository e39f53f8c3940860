"""The demo: a fair contest, told as it came out, into a folder that can be written to."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from typer.testing import CliRunner

import experiments.commands.demo as command
from experiments.demo import run as demo
from experiments.demo.record import CONTESTANTS, SHOP_CONTESTANTS
from experiments.demo.run import Network, Settings
from lbdrop.cli import app
from lbdrop.dropout import LearnableDropout
from lbdrop.masks import entropy
from lbdrop.recommend import Interactions
from lbdrop.rules.bound import Bound
from lbdrop.serve import read_titles

pytestmark = pytest.mark.process

runner = CliRunner()
TINY = replace(Settings.quick(), epochs=1, hidden=8)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("demo") / "new" / "folder"
    done = runner.invoke(app, ["demo", "--quick", "--out", str(out)])
    assert done.exit_code == 0, done.output
    return out, done.output


def result_of(quick: tuple[Path, str]) -> dict[str, Any]:
    return json.loads(
        (quick[0] / "result.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} in JSON")
    )


def test_command_writes_a_page_and_a_json_and_prints_their_paths(quick: tuple[Path, str]):
    out, output = quick
    assert sorted(path.name for path in out.iterdir()) == [
        "index.html",
        "items.csv",
        "likes.csv",
        "result.json",
    ]
    assert all(str(path.resolve()) in output for path in out.iterdir())
    assert all(name in output for name in CONTESTANTS)
    assert all(name in output for name in (*SHOP_CONTESTANTS, "oracle"))


def test_shop_files_are_accepted_by_fit_and_serve(quick: tuple[Path, str]):
    data = Interactions.from_frame(pl.read_csv(quick[0] / "likes.csv"))
    titles = read_titles(quick[0] / "items.csv")
    assert data.rows.shape == (600, 120)
    assert set(data.items) == set(titles)
    assert all(titles.values())


def test_page_loads_nothing_and_holds_its_pictures(quick: tuple[Path, str]):
    page = (quick[0] / "index.html").read_text()
    assert "http://" not in page
    assert "https://" not in page
    assert page.count("data:image/png;base64,") == 2 * Settings.quick().pictures
    assert page.count("<figure><figcaption>") == 3 + 2 + 2 + len(CONTESTANTS) + 1 + 1


def test_json_holds_all_measures_of_all_seeds_and_contestants(quick: tuple[Path, str]):
    result = result_of(quick)
    assert result["settings"]["epochs"] == Settings.quick().epochs
    assert result["provenance"]["versions"]["torch"] == torch.__version__
    assert [entry["name"] for entry in result["contestants"]] == list(CONTESTANTS)
    for entry in result["contestants"]:
        assert [part["seed"] for part in entry["per_seed"]] == result["seeds"]
        assert sum(entry["reliability"]["count"]) == result["data"]["test"] * len(result["seeds"])
        for name in ("accuracy", "nll", "brier", "ece"):
            values = [part["test"][name] for part in entry["per_seed"]]
            assert entry["test"][name]["mean"] == pytest.approx(np.mean(values))
            assert entry["test"][name]["se"] == pytest.approx(np.std(values, ddof=1) / math.sqrt(len(values)))
        chosen = min(entry["search"], key=lambda trial: trial["validation_nll"])
        assert entry["strength"] == chosen["strength"]


def test_contestants_get_the_same_number_of_tries(quick: tuple[Path, str]):
    tries = {tuple(t["strength"] for t in entry["search"]) for entry in result_of(quick)["contestants"]}
    assert tries == {Settings.quick().strengths}


def test_result_says_how_its_settings_were_chosen(quick: tuple[Path, str]):
    selection = result_of(quick)["selection"]
    assert selection == demo.SELECTION
    assert "not untouched" in (quick[0] / "index.html").read_text()


def test_shown_digits_are_the_most_uncertain_ones(quick: tuple[Path, str]):
    entropies = [digit["entropy"] for digit in result_of(quick)["uncertain"]["digits"]]
    assert entropies == sorted(entropies, reverse=True)
    assert 0 < entropies[0] <= math.log(10) + 1e-4
    certain = [digit["entropy"] for digit in result_of(quick)["uncertain"]["certain"]]
    assert certain == sorted(certain)
    assert certain[-1] < entropies[-1]


def test_result_holds_rates_over_training_and_pavpu_over_thresholds(quick: tuple[Path, str]):
    result = result_of(quick)
    for entry in result["contestants"]:
        learned = entry["kind"].startswith("per")
        assert bool(entry["rates_over_training"]) is learned
        for layer, line in entry["rates_over_training"].items():
            assert [epoch for epoch, _ in line] == list(range(Settings.quick().epochs + 1))
            assert line[0][1] == Settings.quick().start_rate
            assert line[-1][1] == pytest.approx(
                np.mean([np.mean(p["rates"][layer]) for p in entry["per_seed"]]), abs=1e-3
            )
        curve = entry["pavpu_curve"]
        assert (curve["t"][0], curve["t"][-1], len(curve["pavpu"])) == (0, 1, len(curve["t"]))
        assert all(0 <= point["mean"] <= 1 for point in curve["pavpu"])


def test_split_is_always_the_same_and_shares_no_digit():
    first, second = demo.load(Settings()), demo.load(Settings(seeds=1, epochs=1))
    parts = [first.train.index, first.validation.index, first.test.index]
    assert [len(part) for part in parts] == [300, 400, 1097]
    assert len(torch.cat(parts).unique()) == 1797
    assert torch.equal(first.test.index, second.test.index)


def test_fixed_and_learned_rates_pay_the_same_for_their_weights():
    network = Network(8, lambda units: LearnableDropout(units, 0.2))
    bound = Bound(network, examples=300, s=0.7)
    network(torch.rand(2, 64))
    layers = {"drop1": network.drop1, "drop2": network.drop2}
    kl = bound.kl({name: layer for name, layer in layers.items() if isinstance(layer, LearnableDropout)})
    masks = 2 * 8 * (entropy(torch.tensor(math.log(4.0))) - math.log(2))  # a constant where rates are fixed
    assert torch.allclose(kl + masks, network.weight_kl(keep=0.8, s=0.7), rtol=1e-5)


@pytest.mark.parametrize("contestant", CONTESTANTS.values(), ids=list(CONTESTANTS))
def test_seed_gives_the_same_network_twice_and_leaves_the_callers_randomness_alone(contestant: demo.Contestant):
    data = demo.load(TINY)
    state = torch.get_rng_state()
    a, b, other = (demo.train(contestant, 0.1, seed, data.train, TINY) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.last.weight, other.last.weight)


def test_learned_rates_move_and_fixed_ones_do_not():
    data = demo.load(TINY)
    for contestant in CONTESTANTS.values():
        found = demo.rates(demo.train(contestant, 0.1, 0, data.train, TINY), contestant)
        assert {len(layer) for layer in found.values()} == {8 if contestant.kind == "per unit" else 1}
        if contestant.learned:
            assert any(rate != TINY.start_rate for layer in found.values() for rate in layer)
        else:
            assert all(rate == contestant.rate for layer in found.values() for rate in layer)


def entries(**nll: list[float]) -> list[dict[str, Any]]:
    return [{"name": name, "per_seed": [{"test": {"nll": v}} for v in values]} for name, values in nll.items()]


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [([0.10, 0.11, 0.10], "better"), ([0.30, 0.31, 0.30], "worse"), ([0.10, 0.30, 0.21], "no clear difference")],
)
def test_findings_follow_from_the_numbers(ours: list[float], verdict: str):
    comparison = demo.compare(entries(ours=ours, theirs=[0.20, 0.21, 0.20]), "ours", "theirs")
    assert demo._in_words(comparison).endswith(f": {verdict}.")


def test_interval_is_students_t():
    from scipy.stats import ttest_rel

    ours, theirs = [0.1, 0.2, 0.15, 0.3], [0.2, 0.21, 0.2, 0.25]
    expected = ttest_rel(ours, theirs).confidence_interval(0.95)
    comparison = demo.compare(entries(ours=ours, theirs=theirs), "ours", "theirs")
    assert comparison["interval"] == pytest.approx([expected.low, expected.high])


def test_one_seed_claims_nothing():
    comparison = demo.compare(entries(ours=[0.1], theirs=[0.2]), "ours", "theirs")
    assert comparison["interval"] is None
    assert "one seed" in demo._in_words(comparison)


def no_training(*_: object) -> None:
    pytest.fail("training began")


def taken_by_a_file(tmp_path: Path) -> Path:
    (tmp_path / "taken").write_text("mine")
    return tmp_path / "taken"


def below_a_file(tmp_path: Path) -> Path:
    return taken_by_a_file(tmp_path) / "below"


def page_is_a_folder(tmp_path: Path) -> Path:
    (tmp_path / "index.html").mkdir()
    return tmp_path


@pytest.mark.parametrize("place", [taken_by_a_file, below_a_file, page_is_a_folder])
def test_unwritable_folder_is_one_line_before_training(place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command, "run", no_training)
    done = runner.invoke(app, ["demo", "--quick", "--out", str(place(tmp_path))])
    assert done.exit_code == 1
    assert len(done.output.strip().splitlines()) == 1
    assert "--out" in done.output


def test_ctrl_c_is_one_line_and_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", interrupted)
    done = runner.invoke(app, ["demo", "--out", str(tmp_path)])
    assert done.exit_code == 130
    assert done.output.strip().splitlines() == ["stopped"]
    assert not list(tmp_path.iterdir())


def test_options_override_even_a_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[Settings] = []

    def note(settings: Settings, tick: object) -> None:
        seen.append(settings)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", note)
    runner.invoke(app, ["demo", "--quick", "--seeds", "1", "--epochs", "7", "--out", str(tmp_path)])
    assert seen == [replace(Settings.quick(), seeds=1, epochs=7)]
