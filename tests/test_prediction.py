"""Predictive distributions: what they contain, and what they leave as it was."""

from collections import UserDict
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lbdrop import DropoutError, LearnableDropout, Predictive, masks, predict
from lbdrop.passes.drawer import IndependentMasks


def classifier(classes: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), LearnableDropout(16), nn.Linear(16, classes))


@pytest.mark.parametrize("memory", [None, 20_000, 1])
def test_prediction_does_not_depend_on_how_many_masks_run_together(memory: int | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 8), nn.Tanh(), LearnableDropout(8), nn.Linear(8, 16), LearnableDropout(16), nn.Linear(16, 3)
    )
    x, groups = torch.randn(6, 4), {}
    for alone in (0.0, 1.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lbdrop.passes.pieces.ALONE", alone)
            generator = torch.Generator().manual_seed(1)
            groups[alone] = predict(model, x, samples=5, generator=generator, memory=memory).samples
    assert groups[0.0] is not None
    torch.testing.assert_close(groups[0.0], groups[1.0])
    assert (groups[0.0][0] - groups[0.0][1]).abs().max() > 1e-3


def test_summaries_equal_their_definitions() -> None:
    p = predict(classifier(), torch.randn(5, 4), samples=12)
    assert p.samples is not None
    assert p.samples.shape == (12, 5, 3)
    mean = p.samples.mean(0)
    entropy = -(mean * mean.log()).sum(1)
    conditional = -(p.samples * p.samples.log()).sum(2).mean(0)
    torch.testing.assert_close(p.mean, mean)
    torch.testing.assert_close(p.entropy, entropy)
    torch.testing.assert_close(p.mutual_information, entropy - conditional)
    torch.testing.assert_close(p.variance, p.samples.var(0, correction=0))
    torch.testing.assert_close(p.std**2, p.variance)


def test_mean_of_many_samples_approaches_the_exact_predictive() -> None:
    model, x = nn.Sequential(nn.Linear(4, 2), LearnableDropout(2, 0.3), nn.Linear(2, 3)), torch.randn(5, 4)
    exact = torch.zeros(5, 3)
    for a in (0, 1):
        for b in (0, 1):
            with masks.fixed(model, {"1": torch.tensor([a, b])}):
                chance = (0.7 if a else 0.3) * (0.7 if b else 0.3)
                exact += chance * F.softmax(model(x), 1).detach()
    torch.testing.assert_close(predict(model, x, samples=20_000).mean, exact, atol=5e-3, rtol=0)


def test_mode_and_random_state_stay_as_they_were() -> None:
    model, x = classifier(), torch.randn(5, 4)
    model[1].eval()
    statistics = model[1].running_mean.clone()
    state = torch.random.get_rng_state()
    predict(model, x)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [m.training for m in model] == [True, False, True, True, True]
    assert torch.equal(model[1].running_mean, statistics)
    assert torch.is_grad_enabled()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        predict(model, torch.randn(5, 9))
    assert [m.training for m in model] == [True, False, True, True, True]


def test_seeds_reproduce_and_generators_move_on() -> None:
    model, x = classifier(), torch.randn(5, 4)
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        draws.append(predict(model, x).mean)
    assert torch.equal(*draws)
    generator = torch.Generator().manual_seed(3)
    assert not torch.equal(predict(model, x, generator=generator).mean, predict(model, x, generator=generator).mean)


def test_loaders_tensors_and_dicts_agree() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = classifier()

        def forward(self, inputs):
            return self.net(inputs)

    model, x = classifier(), torch.randn(10, 4)
    loader = DataLoader(TensorDataset(x, torch.zeros(10)), batch_size=4)
    many = predict(model, loader, samples=4000, progress=False)
    assert many.samples is not None
    assert many.samples.shape == (4000, 10, 3)
    torch.testing.assert_close(many.mean, predict(model, x, samples=4000).mean, atol=0.02, rtol=0)
    assert predict(Named(), {"inputs": x}).mean.shape == (10, 3)
    summary = predict(model, loader, keep_samples=False, progress=False)
    assert summary.samples is None
    assert summary.entropy is not None
    assert summary.entropy.shape == (10,)


def test_arrays_pairs_and_mappings_are_batches() -> None:
    model, x = classifier(), torch.randn(10, 4)
    for inputs in (x.numpy(), (x, torch.zeros(10))):
        assert predict(model, inputs).mean.shape == (10, 3)

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = classifier()

        def forward(self, inputs, factor):
            return self.net(inputs) * factor

    named = UserDict(inputs=x, factor=torch.tensor(2.0))  # as tokenizers return, with a scalar beside the examples
    assert predict(Scaled(), named, samples=50, memory=4_000).mean.shape == (10, 3)


def test_per_pixel_outputs_have_maps_of_uncertainty() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), LearnableDropout(8, channels=True), nn.Conv2d(8, 4, 1))
    p = predict(model, torch.randn(2, 3, 6, 5), samples=7)
    assert p.mean.shape == (2, 4, 6, 5)
    assert p.entropy is not None
    assert p.mutual_information is not None
    assert p.entropy.shape == p.mutual_information.shape == (2, 6, 5)
    torch.testing.assert_close(p.mean.sum(1), torch.ones(2, 6, 5))


def test_regression_and_binary_outputs() -> None:
    model, x = classifier(1), torch.randn(5, 4)
    regression = predict(model, x, kind="regression")
    assert regression.entropy is None
    assert regression.samples is not None
    torch.testing.assert_close(regression.mean, regression.samples.mean(0))
    binary = predict(model, x, kind="binary")
    assert binary.entropy is not None
    torch.testing.assert_close(binary.entropy, torch.distributions.Bernoulli(binary.mean).entropy())
    last = Predictive.of(torch.randn(6, 2, 5, 3), class_dim=-1)
    torch.testing.assert_close(last.mean.sum(-1), torch.ones(2, 5))


def test_results_do_not_depend_on_the_memory_budget() -> None:
    model, x = nn.Sequential(nn.Linear(4, 64), LearnableDropout(64), nn.Linear(64, 3)), torch.randn(50, 4)
    widest = []
    model[2].register_forward_hook(lambda _, inputs, __: widest.append(inputs[0].numel()))
    small = predict(model, x, samples=300, memory=100_000)
    assert small.samples is not None
    assert small.samples.shape == (300, 50, 3)
    assert len(widest) > 3
    large = predict(model, x, samples=300)
    torch.testing.assert_close(small.mean, large.mean, atol=0.1, rtol=0)


def test_masks_at_once_are_halved_when_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, draw = [], IndependentMasks.draw

    def short_of_memory(drawer: IndependentMasks, *arguments: Any) -> Tensor:
        """Memory for five masks at once."""
        tried.append(len(drawer.generators))
        if tried[-1] > 5:
            raise torch.OutOfMemoryError("out of memory")
        return draw(drawer, *arguments)

    monkeypatch.setattr("lbdrop.passes.pieces.ALONE", 1.0)
    monkeypatch.setattr(IndependentMasks, "draw", short_of_memory)
    model = nn.Sequential(nn.Linear(4, 8), LearnableDropout(8), nn.Linear(8, 3))
    assert predict(model, torch.randn(5, 4), samples=20).samples.shape == (20, 5, 3)
    assert tried == [20, 10, 5, 5, 5, 5]


@pytest.mark.usefixtures("without_type_checks")
def test_wrong_arguments_are_refused_by_name() -> None:
    model = classifier()
    with pytest.raises(DropoutError, match="empty loader"):
        predict(model, DataLoader(TensorDataset(torch.zeros(0, 4))))
    with pytest.raises(DropoutError, match="empty batch"):
        predict(model, torch.zeros(0, 4))
    with pytest.raises(DropoutError, match="samples: want a whole number, at least 1"):
        predict(model, torch.zeros(1, 4), samples=0)
    with pytest.raises(DropoutError, match="kind: want 'classification', 'binary' or 'regression', got 'counts'"):
        predict(model, torch.zeros(1, 4), kind="counts")  # pyright: ignore[reportArgumentType]
    with pytest.raises(DropoutError, match="say kind='binary'"):
        predict(nn.Sequential(model, nn.Flatten(0)), torch.randn(3, 4))
    with pytest.raises(DropoutError, match="want a tensor, or an object with .logits, got tuple"):
        predict(_Pair(model), torch.randn(3, 4))
    with pytest.raises(DropoutError, match=r"lbdrop.convert"):
        predict(nn.Linear(4, 3), torch.randn(3, 4))


class _Pair(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x), x


def test_class_axis_outside_of_classification_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 4), LearnableDropout(4), nn.Linear(4, 1))
    with pytest.raises(DropoutError, match="class_dim: want it in classification alone, got kind='regression'"):
        predict(model, torch.randn(5, 3), kind="regression", class_dim=2)
