"""Random setups: the same draws everywhere, the same start for every contestant, and runs that go on where they were cut off."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.regret import run as command
from experiments.regret.data import load
from experiments.regret.distribution import EXAMPLES, FAMILIES, Setup, draw
from experiments.regret.networks import build
from experiments.regret.runs import CONTESTANTS, GRID, Job, run

pytestmark = pytest.mark.process


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file of the same form, with few examples and answers that can be learned."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 17, (400, 8, 8)).astype(np.uint8)
    table = rng.normal(size=(308, 7)).astype(np.float32)
    tokens = rng.integers(97, 122, (400, 16)).astype(np.uint8)
    path = tmp_path / "regret.npz"
    np.savez(
        path, **{"digits-x": x, "digits-y": (x[:, 0, 0] // 2).astype(np.uint8), "uci-yacht": table,
                 "letters-x": tokens, "letters-y": (tokens[:, 0] > 110).astype(np.uint8), "characters-x": tokens,
                 "characters-y": tokens, "words": (rng.random((400, 60)) < 0.2).astype(np.uint8)},
    )  # fmt: skip
    return path


def small(family: str, kind: str) -> Setup:
    return Setup(
        "small", family, kind, width=16, depth=2, norm=False, input_dropout=True, examples=100, held_out=0.2,
        label_noise=0.1 if family not in ("causal", "vae") else 0.0, epochs=5, batch=10, optimizer="adam", lr=0.003,
        weight_decay=0.0, warm_up=0.1, schedule="cosine", clip=1.0,
    )  # fmt: skip


def test_halves_are_the_same_draws_every_time_and_share_none() -> None:
    one, other = draw("development", 40), draw("verdict", 40)
    assert draw("development", 20) == one[:20]
    assert not {replace(each, name="") for each in one} & {replace(each, name="") for each in other}
    # Written down: another version of Python, or a changed distribution, would draw others.
    assert [(s.family, s.data, s.examples, s.epochs) for s in one[:3]] == [
        ("deep-mlp", "uci-wine", 799, 34), ("vae", "words", 290, 35), ("cnn", "fashion", 1777, 22)
    ]  # fmt: skip


def test_setups_stay_in_the_written_ranges() -> None:
    for setup in draw("development", 300):
        assert setup.data in FAMILIES[setup.family]
        assert 10 <= setup.examples <= 10_000
        assert setup.examples * (1 + setup.held_out) < EXAMPLES[setup.data]
        assert 2 <= setup.epochs <= 60
        assert setup.steps >= 80


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns_rates_and_fixed_ones(family: str, data: Path) -> None:
    kind = {"causal": "characters", "vae": "words", "lstm": "letters"}.get(family, "digits")
    setup = small(family, kind)
    parts = load(data, setup, 0)
    for name in ("fixed-0.1", "balanced-layer"):
        with torch.random.fork_rng():
            found = run(name, setup, parts, 0)
        assert found["test"] is not None
    assert found["rates"]


def test_contestants_of_a_seed_start_from_the_same_weights(data: Path) -> None:
    setup = small("mlp", "uci-yacht")
    parts = load(data, setup, 0)
    weights = []
    for rate in (0.0, 0.5):
        torch.manual_seed(0)
        weights.append(torch.cat([p.flatten() for p in build(setup, parts.train[0], 1, rate).parameters()]))
    assert torch.equal(*weights)


def test_parts_share_no_example(data: Path) -> None:
    parts = load(data, small("mlp", "uci-yacht"), 3)
    rows = torch.cat([parts.train[0], parts.validation[0], parts.test[0]])
    assert len(rows.unique(dim=0)) == len(rows) == 308


def test_grid_choice_is_trained_again_on_all_examples(data: Path) -> None:
    setup = small("mlp", "uci-yacht")
    known = {f"fixed-{rate:g}": {"validation": abs(rate - 0.3)} for rate in GRID}
    (line,) = Job(setup, 0, ("retrained",), data, known).run()
    assert line["of"] == "fixed-0.3"
    assert line["contestant"] == "retrained"


def test_runs_that_are_there_are_not_run_again(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "draw", lambda half, count: [small("mlp", "uci-yacht")])
    out = tmp_path / "out"
    options = ["--half", "development", "--seeds", "1", "--workers", "1", "--data", str(data), "--out", str(out)]
    command.main([*options, "--contestant", "fixed-0,fixed-0.1"])
    first = command.read([out])
    command.main([*options, "--contestant", "fixed-0,fixed-0.1,early"])
    lines = [line["contestant"] for line in command.read([out]) if "setup" in line]
    assert lines == ["fixed-0", "fixed-0.1", "early"]
    assert command.read([out])[: len(first)] == first
    with (out / "development.jsonl").open("a") as file:
        file.write(json.dumps({"setup": "small"})[:-3])  # cut off
    assert len([line for line in command.read([out]) if "setup" in line]) == 3


def test_every_contestant_is_named_once() -> None:
    assert len(set(CONTESTANTS)) == len(CONTESTANTS)
