"""The uncertainty experiment: networks side by side are those alone, measures are what they say, runs go on where they were cut off."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from experiments.uncertainty import measures, uci_protocol
from experiments.uncertainty.__main__ import main
from experiments.uncertainty.bench import Bench
from experiments.uncertainty.contestants import CONTESTANTS, of_task
from experiments.uncertainty.networks import cnn, encoder, mlp, resnet
from experiments.uncertainty.runs import run
from experiments.uncertainty.side_by_side import Networks, masked_outputs, train
from experiments.uncertainty.summary import beside, verdict
from experiments.uncertainty.tasks import TASKS, Parts, Task
from lbdrop import metrics


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def parts() -> Parts:
    """Small images of three classes that differ by their brightness."""
    y = torch.randint(3, (400,), generator=generator())
    x = (y[:, None, None] / 3 + 0.2 * torch.randn(400, 8, 8, generator=generator(1))).clamp(0, 1)
    pairs = [(x[rows], y[rows]) for rows in torch.arange(400).split(100)]
    return Parts(pairs[0], pairs[1], pairs[2], x[300:320], 1 - x[320:340], {"noise 1": pairs[3]}, 3)


def test_networks_side_by_side_compute_what_a_network_of_torch_does() -> None:
    nets = Networks.drawn(3, 5, torch.zeros(2, 2), generator())
    x = torch.randn(2, 7, 3, generator=generator(1))
    found = nets.outputs(x, generator())
    for net in range(2):
        h = F.relu(x[net] @ nets.first[net] + nets.first_bias[net])
        assert torch.allclose(found[net], (h @ nets.second[net] + nets.second_bias[net])[:, 0], atol=1e-6)


def test_masks_of_networks_side_by_side_have_each_its_own_rate() -> None:
    nets = Networks.drawn(4, 6, torch.tensor([[0.0, 0.0], [0.5, 0.1]]), generator())
    outputs = masked_outputs(nets, torch.ones(2, 5, 4), 50, generator())
    assert outputs[:, 0].var(0).max() < 1e-10 < outputs[:, 1].var(0).min()


def test_networks_side_by_side_are_trained_as_if_alone() -> None:
    x = torch.randn(1, 64, 2, generator=generator())
    y = x[..., 0] - x[..., 1]
    twice = train(x.repeat(2, 1, 1), y.repeat(2, 1), torch.zeros(2, 2), 8, 80, batch=32, lr=0.03, generator=generator())
    error = (twice.outputs(x.repeat(2, 1, 1), generator()) - y).square().mean(1)
    assert bool((error < 0.1).all())  # of targets with a variance of 2
    assert not torch.equal(twice.first[0], twice.first[1])


def test_noise_of_the_largest_likelihood_is_that_of_the_residuals() -> None:
    y = torch.randn(1, 4_000, generator=generator()) * 0.5
    part = uci_protocol._Parts(torch.zeros(1), torch.zeros(1), torch.zeros(1), y[0], 1.0)
    nll, variance = uci_protocol._best_noise(torch.zeros(3, 1, 4_000), [part])
    assert float(variance) == pytest.approx(0.25, rel=0.1)
    assert float(nll) == pytest.approx(0.5 * np.log(2 * np.pi * np.e * 0.25), abs=0.05)


def test_log_likelihood_is_that_of_the_published_formula() -> None:
    samples, part = torch.randn(9, 5, generator=generator()), torch.randn(5, generator=generator(1))
    found = uci_protocol._test(samples, uci_protocol._Parts(part, part, part, part, 3.0), 0.2)
    expected = -float(metrics.mixture_nll(3.0 * samples, 3.0 * part, 9.0 * 0.2))
    assert found["ll"] == pytest.approx(expected, abs=1e-5)
    assert found["rmse"] == pytest.approx(float(metrics.rmse(3.0 * samples.mean(0), 3.0 * part)), abs=1e-5)


def test_adaptive_ece_is_zero_where_confidence_is_right_and_the_gap_where_it_is_not() -> None:
    confidence = torch.full((3_000,), 0.8)
    labels = (torch.arange(3_000) % 5 == 0).long()  # class 0 in four of five
    probs = torch.stack([confidence, 1 - confidence], 1)
    assert float(measures.adaptive_ece(probs, labels)) == pytest.approx(0.0, abs=0.02)
    assert float(measures.adaptive_ece(probs, torch.zeros(3_000).long())) == pytest.approx(0.2, abs=1e-6)


def test_temperature_of_calibrated_probabilities_is_one_and_undoes_sharpening() -> None:
    logits = 2 * torch.randn(20_000, 3, generator=generator())
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator())[:, 0]
    assert measures.temperature(logits.softmax(1), labels) == pytest.approx(1.0, abs=0.05)
    assert measures.temperature((3 * logits).softmax(1), labels) == pytest.approx(3.0, abs=0.15)


@pytest.mark.parametrize("network", [mlp, cnn, resnet])
def test_networks_have_the_weights_of_a_seed_wherever_dropouts_go(network, parts: Parts) -> None:
    states = []
    for places in ("usual", "everywhere"):
        torch.manual_seed(0)
        states.append(network(parts, 0.1, places).eval()(parts.test[0]))
    assert torch.equal(*states)


def test_encoder_reads_characters() -> None:
    letters = torch.randint(128, (4, 16)), torch.zeros(4).long()
    text = Parts(letters, letters, letters, letters[0], letters[0], {}, 3)
    assert encoder(text, 0.1, "usual")(text.train[0]).shape == (4, 3)


LIBRARY = (
    "deterministic",
    "mc-best",
    "mc-improved",
    "early",
    "held-out",
    "bound-everywhere",
    "swag",
    "ensemble",
    "ensemble-learned",
)


@pytest.mark.parametrize("name", LIBRARY)
def test_contestants_predict_and_say_what_they_cost(name: str, parts: Parts) -> None:
    bench = Bench(Task("small", lambda folder, seed: parts, mlp, 6, 20, 3e-3), parts, 0, "cpu")
    fitted = CONTESTANTS[name][0](bench)
    probs = fitted.probabilities(parts.test[0], 5)
    assert torch.allclose(probs.sum(-1), torch.ones(probs.shape[:2]), atol=1e-5)
    assert float(metrics.accuracy(probs.mean(0), parts.test[1])) > 0.5
    assert fitted.seconds > 0
    assert fitted.copies >= 1
    assert torch.equal(probs, fitted.probabilities(parts.test[0], 5))  # the same masks for the same question


def test_tasks_name_contestants_they_can_run() -> None:
    for name, task in TASKS.items():
        wanted = of_task(name, task.places)
        assert ("laplace-kron" in wanted) == ("transformer" not in name)
        assert ("depth-learned" in wanted) == ("stochastic depth" in task.places)


def test_record_has_all_measures_of_the_page(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "small", Task("small", lambda folder, seed: parts, mlp, 5, 20))
    (record,) = run("small", 0, ["mc-.1"], Path())
    assert set(record["test"]) == {"nll", "accuracy", "ece", "adaptive ece", "brier", "error auroc", "aurc"}
    assert set(record["masks"]) == {"1", "2", "5", "10", "20", "50"}
    assert set(record["shift"]) == {"noise 1"}
    json.dumps(record)


def test_verdict_needs_two_standard_errors_of_paired_runs() -> None:
    base = {0: 1.0, 1: 2.0, 2: 3.0}
    assert verdict({s: v - 0.1 for s, v in base.items()}, base) == "better"
    assert verdict({0: 0.9, 1: 2.1, 2: 2.9}, base) == "level"
    assert verdict({0: 0.0}, {0: 1.0}) == "one seed"
    assert [beside([1.0, 1.1, 0.9], other) for other in (0.5, 1.05, 2.0)] == ["above", "level", "below"]


@pytest.fixture
def uci_folder(tmp_path: Path) -> Path:
    """The yacht set's files, with other numbers: 60 rows, two splits."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    files = {"data.txt": np.column_stack([x, x.sum(1) + 0.1 * rng.normal(size=60)]), "index_features.txt": np.arange(3),
             "index_target.txt": np.array([3])}  # fmt: skip
    for split in range(2):
        rows = rng.permutation(60)
        files |= {f"index_train_{split}.txt": rows[:50], f"index_test_{split}.txt": rows[50:]}
    with tarfile.open(tmp_path / "uci.tar", "w") as archive:
        for name, content in files.items():
            np.savetxt(tmp_path / name, content)
            archive.add(tmp_path / name, f"UCI_Datasets/yacht/data/{name}")
    return tmp_path


def test_uci_protocol_runs_from_rates_to_a_record_and_is_not_run_again(
    uci_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from experiments.uncertainty import __main__ as command
    from experiments.uncertainty import uci_rates

    out = uci_folder / "runs"
    monkeypatch.setattr(uci_rates, "STEPS", 30)
    monkeypatch.setattr(uci_protocol, "BUDGETS", (20, 40))
    monkeypatch.setattr(uci_protocol, "MASKS_TEST", 20)
    for table in (command.SPLITS, uci_protocol.SPLITS):
        monkeypatch.setitem(table, "yacht", 2)
    order = ["rates", "uci", "--folder", str(uci_folder), "--out", str(out), "--set", "yacht", "--workers", "1"]
    main([*order, "--device", "cpu"])
    record = json.loads((out / "uci-yacht.json").read_text())
    assert set(record["contestants"]) == set(uci_protocol.CONTESTANTS)
    assert all(len(splits) == 2 for splits in record["contestants"].values())
    assert {split["steps"] for split in record["contestants"]["held-out"]} <= {20, 40}
    assert record["contestants"]["held-out"][0]["rmse"] < 2.0  # of targets that spread by 1.7
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    main([*order, "--device", "cpu"])
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
