"""Data, networks and measures of every task, at a small size."""

import gzip
import math
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lbdrop
from experiments.collaborative import samples
from experiments.networks.vgg import VGG
from experiments.rates import features, images, recommendation, run, text, uci
from experiments.rates.contestants import build_network, build_objective, chosen
from experiments.rates.record import CONTESTANTS
from experiments.rates.tasks import TASKS
from experiments.rival_rules.mask_prior import MaskPrior
from experiments.rival_rules.self_tuning import SelfTuning
from experiments.vision import cifar10
from lbdrop import Balanced, Bound, Objective
from lbdrop.dropout import learned_layers
from lbdrop.errors import DropoutError
from lbdrop.recommend.data.prepared import load_prepared

pytestmark = pytest.mark.process


@pytest.mark.parametrize("name", TASKS)
def test_tasks_load_build_and_take_a_step(name: str, small_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "SIZES", (4, 4, 4))
    monkeypatch.setattr(samples, "SAMPLES", {"netflix-sample": samples.Sample(40, 10)})
    classes = torch.arange(40) % 10
    monkeypatch.setattr(
        features, "_features", lambda folder: (torch.rand(40, 2048), classes, torch.rand(20, 2048), classes[:20])
    )
    task = TASKS[name]
    data = task.data(small_data, 0)
    model = build_network(CONTESTANTS["tuned-layer"], task, data)
    objective = build_objective(
        CONTESTANTS["tuned-layer"], model, replace(task, batch=4), data, 100, torch.Generator().manual_seed(0)
    )
    before = [p.clone() for p in model.parameters()]
    optimizer = torch.optim.Adam(lbdrop.parameter_groups(model, 0.01, lr=task.lr))
    for _ in range(2):
        loss = objective(task.losses, *(part[:4] for part in data.train))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert math.isfinite(float(loss.detach()))
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert len(learned_layers(model)) >= (1 if task.kind == "ranking" else 2)
    losses = task.losses(model, *(part[:4] for part in data.train))
    assert losses.shape == (4,)


@pytest.mark.parametrize("name", ["digits", "fashion-1000-mlp", "uci-yacht", "text"])
def test_parts_share_no_example_and_depend_on_the_seed(name: str, small_data: Path) -> None:
    task = TASKS[name]
    data = task.data(small_data, 0)
    if name != "text":  # whose windows may say the same
        everything = torch.cat([part[0].flatten(1) for part in data[:3]])
        assert len(everything.unique(dim=0)) == len(everything)
    again = task.data(small_data, 0)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(data[:3], again[:3], strict=True))
    if name.startswith("digits"):
        assert [len(part[0]) for part in data[:3]] == [600, 200, 997]
        assert not torch.equal(data.train[0], task.data(small_data, 1).train[0])
    if name == "uci-yacht":  # 36 rows to train on, a fifth of them validate
        assert [len(part[0]) for part in data[:3]] == [29, 7, 4]
        torch.testing.assert_close(data.train[0].mean(0), torch.zeros(3), atol=1e-5, rtol=0)
        torch.testing.assert_close(data.train[1].std(correction=0), torch.tensor(1.0))
    if name == "text":  # a target is the next input
        assert torch.equal(data.train[0][:, 1:], data.train[1][:, :-1])


def test_characters_see_only_those_before_them() -> None:
    model = text.Characters(20, 0.1).eval()
    x = torch.randint(0, 20, (2, text.CONTEXT))
    later = x.clone()
    later[:, 30:] = 0
    torch.testing.assert_close(model(x)[:, :30], model(later)[:, :30], rtol=1e-4, atol=1e-5)


def test_official_files_read_like_the_packed_ones(small_data: Path, tmp_path: Path) -> None:
    (tmp_path / "fashion-mnist").mkdir()
    with np.load(small_data / "fashion-mnist.npz") as packed:
        for name, file in images.IDX.items():
            array = packed[name]
            head = struct.pack(f">I{array.ndim}I", 0x0800 | array.ndim, *array.shape)
            (tmp_path / "fashion-mnist" / file).write_bytes(gzip.compress(head + array.tobytes()))
    ours, theirs = (images.fashion(30, each, 0) for each in (tmp_path, small_data))
    assert all(torch.equal(a, b) for x, y in zip(ours[:3], theirs[:3], strict=True) for a, b in zip(x, y, strict=True))


@pytest.mark.parametrize("name", ["fashion-1000-mlp", "uci-yacht"])
def test_missing_data_are_errors_that_say_where_to_get_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "PLACES", images.PLACES[:1])  # this machine may have Debian's package
    with pytest.raises(DropoutError, match="github.com"):
        TASKS[name].data(tmp_path, 0)


def test_regression_measures_are_in_the_datas_own_units() -> None:
    model = uci.Regressor(3, 4, 0.1)
    nn.init.constant_(model.log_variance, math.log(0.25))
    task = TASKS["uci-yacht"]
    found = task.of.measures(torch.zeros(1, 2, 1), torch.tensor([1.0, -1.0]), model, unit=10.0)
    assert found["rmse"] == pytest.approx(10.0)
    assert found["nll"] == pytest.approx(0.5 * (math.log(2 * math.pi * 25) + 4))
    x, y = torch.randn(6, 3), torch.randn(6)
    model.eval()
    deterministic = task.of.measures(model(x)[None].detach(), y, model, unit=1.0)["nll"]
    assert deterministic == pytest.approx(float(task.losses(model, x, y).mean().detach()), rel=1e-5)


def test_likes_are_split_by_the_protocol_and_fold_in_items_are_no_target(small_data: Path) -> None:
    (rows, wanted), *held = TASKS["ml-1m-paper"].data(small_data, 0)[:3]
    assert torch.equal(wanted > 0, rows)
    assert (len(rows), recommendation.pieces(wanted)) == (40, pytest.approx(9.0))
    split = samples.split(load_prepared(small_data / "prepared" / "ml-1m"), "ml-1m")
    for (x, y), part in zip(held, (split.validation, split.test), strict=True):
        assert np.array_equal(x.numpy(), part.fold_in.toarray() > 0)
        assert np.array_equal(y.numpy() > 0, part.held_out.toarray() > 0)
        assert torch.equal(y < 0, x)
        torch.testing.assert_close(y.clamp(min=0).sum(1), torch.ones(len(y)))


def test_like_measures_equal_a_calculation_by_hand() -> None:
    # Two users with one like held out, and one without; what is known is neither counted nor ranked.
    y = torch.tensor([[-1.0, 1.0, 0.0, 0.0], [0.0, 0.0, -1.0, 1.0], [-1.0, 0.0, 0.0, 0.0]])
    p = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.3, 0.1, 0.4, 0.2], [0.3, 0.1, 0.4, 0.2]])
    found = TASKS["ml-1m-paper"].of.measures(p.expand(3, 3, 4), y, nn.Identity(), 1.0)
    assert found["nll"] == pytest.approx(-(math.log(0.3) + math.log(0.2)) / 2)
    assert found["ndcg@100"] == pytest.approx((1 + 1 / math.log2(3)) / 2)


@pytest.mark.parametrize("name", ["ml-1m-paper", "ml-1m-dense"])
def test_user_bound_has_its_kl_only_in_training(name: str, small_data: Path) -> None:
    task = TASKS[name]
    data = task.data(small_data, 0)
    torch.manual_seed(0)
    model, (x, y) = task.network(data, 0.5), (part[:5] for part in data.train)
    assert isinstance(model, recommendation.LikesVAE)
    loss = task.losses(model, x, y)
    with torch.no_grad():
        mean, log_variance = model.posterior(model.hidden(model.first(F.normalize(x.float())))).chunk(2, -1)
    posterior = torch.distributions.Normal(mean, (log_variance / 2).exp())
    weight = 0.2 / 9 if name == "ml-1m-paper" else 0.005
    model.dropout.p = 0.0
    _, kl = model(x)
    expected = torch.distributions.kl_divergence(posterior, torch.distributions.Normal(torch.zeros_like(mean), 1.0))
    torch.testing.assert_close(kl, weight * expected.sum(-1))
    at_test = -(model.eval()(x).log_softmax(-1) * y).sum(-1)
    torch.testing.assert_close(task.losses(model, x, y), at_test)
    assert not torch.allclose(loss, at_test)


def test_held_out_likes_are_not_released_into_training(small_data: Path) -> None:
    for name, back in (("ml-1m-paper", None), ("digits", 600)):
        task = TASKS[name]
        data = task.data(small_data, 0)
        for contestant, rule in (("tuned-layer", SelfTuning), ("balanced-layer", Balanced)):
            model = build_network(CONTESTANTS[contestant], task, data)
            objective = build_objective(CONTESTANTS[contestant], model, task, data, 100, torch.Generator())
            assert isinstance(objective, Objective)
            assert isinstance(objective.rule, rule)
            assert objective.rule.examples == back
    with pytest.raises(DropoutError, match="ml-1m-paper has held-out data of another form"):
        chosen("grid,fixed-0.5-retrained", TASKS["ml-1m-paper"])


def test_dense_encoder_adds_up_all_layers_before() -> None:
    torch.manual_seed(0)
    dense, h = recommendation.Dense(4, 3), torch.randn(2, 4)
    first = dense.norms[0](F.silu(h))
    second = dense.norms[1](F.silu(dense.linear[0](first) + first))
    third = dense.norms[2](F.silu(dense.linear[1](second) + first + second))
    torch.testing.assert_close(dense(h), third)


def test_head_features_are_vggs_of_enlarged_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    official = cifar10.Images(
        torch.randint(0, 256, (20, 3, 32, 32), dtype=torch.uint8), torch.arange(20) % 10,
        torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8), torch.arange(4),
    )  # fmt: skip
    monkeypatch.setattr(cifar10, "load", lambda path, download: official)
    with pytest.raises(DropoutError, match="want .*vgg19-conv.npz"):
        features.load(tmp_path, 0)
    network = VGG(19, width=1, pool=2)
    names = [f"conv{block}_{i}" for block, n in enumerate((2, 2, 4, 4, 4), 1) for i in range(1, n + 1)]
    convolutions = [m for m in network.features if isinstance(m, nn.Conv2d)]
    parts = {"pre": network.pre, **dict(zip(names, convolutions, strict=True))}
    arrays = {
        f"{name}.{part}": getattr(m, part).detach().numpy() for name, m in parts.items() for part in ("weight", "bias")
    }
    np.savez(tmp_path / "vgg19-conv.npz", **arrays)  # pyright: ignore
    train, validation, test, _ = features.load(tmp_path, 0)
    assert [len(each[0]) for each in (train, validation, test)] == [18, 2, 4]
    enlarged = F.interpolate(official.test.float() / 255, (64, 64), mode="bilinear")
    torch.testing.assert_close(test[0], network.trunk(enlarged).detach(), rtol=1e-3, atol=1e-4)
    features._features.cache_clear()
    monkeypatch.setattr(cifar10, "load", None)  # a file has them now
    assert torch.equal(features.load(tmp_path, 0)[2][0], test[0])
    assert test[0].shape == (4, 2048)
    torch.testing.assert_close(torch.cat([train[1], validation[1]]).bincount(), torch.full((10,), 2))


def test_prior_on_masks_counts_those_that_an_observation_has(small_data: Path) -> None:
    task = TASKS["ml-1m-paper"]
    data = task.data(small_data, 0)
    objective = build_objective(
        CONTESTANTS["prior-layer"],
        build_network(CONTESTANTS["prior-layer"], task, data),
        task,
        data,
        10,
        torch.Generator(),
    )
    assert isinstance(objective, Objective)
    assert isinstance(objective.rule, MaskPrior)
    assert objective.rule.weight == 1 / 20  # films


def test_prior_on_weights_is_shared_by_all_observations_of_an_example() -> None:
    task = TASKS["text"]
    model = build_network(CONTESTANTS["kl-layer"], task, task.data(Path(), 0))
    objective = build_objective(CONTESTANTS["kl-layer"], model, task, task.data(Path(), 0), 10, torch.Generator())
    assert isinstance(objective, Objective)
    assert isinstance(objective.rule, Bound)
    assert objective.rule.weight / objective.rule.examples == pytest.approx(1 / (text.SIZES[0] * text.CONTEXT))
    prior = build_objective(CONTESTANTS["prior-layer"], model, task, task.data(Path(), 0), 10, torch.Generator())
    assert isinstance(prior, Objective)
    assert isinstance(prior.rule, MaskPrior)
    assert prior.rule.weight == 1  # every character has masks of its own
    said = [run.settings(task, CONTESTANTS[name]).get("prior") for name in ("kl-layer", "concrete", "loss-layer")]
    assert said == [said[0], said[0], None]
    assert said[0] is not None
    assert "prior" not in run.settings(TASKS["digits"], CONTESTANTS["kl-layer"])
