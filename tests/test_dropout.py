"""A dropout layer: where its masks go, what they do, what it refuses."""

import pytest
import torch
from torch import nn

from lbdrop import DropoutError, LearnableDropout, masks


@pytest.mark.parametrize("shape", [(6, 5), (6, 7, 5), (6, 2, 3, 5)])
def test_elements_are_dropped_one_by_one(shape: tuple[int, ...]) -> None:
    y = LearnableDropout(5, 0.5)(torch.ones(shape))
    assert set(y.unique().tolist()) == {0.0, 2.0}
    assert not (y == y[..., :1]).all()


@pytest.mark.parametrize("shape", [(50, 5, 4), (50, 5, 4, 3), (50, 5, 2, 4, 3)])
def test_channels_are_dropped_whole(shape: tuple[int, ...]) -> None:
    y = LearnableDropout(5, 0.5, channels=True)(torch.ones(shape)).flatten(2)
    assert (y == y[:, :, :1]).all()
    assert set(y.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("scale", ["none", "inverted"])
def test_units_are_kept_at_their_own_rates(scale) -> None:
    layer = LearnableDropout(3, 0.5, scale=scale)
    rates = torch.tensor([0.1, 0.5, 0.9])
    layer.logit.data = torch.log(1 - rates) - torch.log(rates)
    kept = (layer(torch.ones(100_000, 3)) != 0).float().mean(0)
    torch.testing.assert_close(kept, 1 - rates, atol=5e-3, rtol=0)
    torch.testing.assert_close(layer.rate, rates)


def test_rate_starts_at_its_argument() -> None:
    for rate in (0.01, 0.3, 0.99):
        assert LearnableDropout(2, rate).p == pytest.approx(rate, abs=1e-6)


def test_deterministic_pass_is_the_mean_of_the_sampled_ones() -> None:
    x = torch.randn(1, 4)
    for scale in ("none", "inverted"):
        layer = LearnableDropout(4, 0.3, scale=scale)
        sampled = layer(x.expand(400_000, 4)).mean(0)
        torch.testing.assert_close(layer.eval()(x)[0], sampled, atol=2e-2, rtol=0)


def test_alpha_dropout_in_eval_mode_is_the_identity_as_in_torch() -> None:
    x = torch.randn(5, 4)
    assert torch.equal(LearnableDropout(4, 0.3, scale="alpha").eval()(x), nn.AlphaDropout(0.3).eval()(x))


def test_alpha_keeps_mean_and_variance_as_torch_does() -> None:
    x = torch.randn(400_000, 1)
    ours, theirs = LearnableDropout(1, 0.2, scale="alpha")(x), nn.AlphaDropout(0.2)(x)
    assert float(ours.detach().mean()) == pytest.approx(float(theirs.mean()), abs=0.01)
    assert float(ours.detach().std()) == pytest.approx(float(theirs.std()), abs=0.01)


def test_generator_reproduces_every_mask() -> None:
    x = torch.ones(20, 8)
    draws = [LearnableDropout(8, generator=torch.Generator().manual_seed(7))(x) for _ in range(2)]
    assert torch.equal(*draws)


def test_layers_with_one_logit_share_their_rate() -> None:
    first = LearnableDropout(rate=0.2)
    second = LearnableDropout(logit=first.logit)
    first.logit.data.fill_(3.0)
    assert second.p == first.p
    assert len(list(nn.Sequential(first, second).parameters())) == 1


def test_repr_shows_the_range_of_rates() -> None:
    layer = LearnableDropout(3, 0.5)
    layer.logit.data = torch.tensor([-0.8, 0.0, 3.0])
    assert "3 units, keep=0.31–0.95" in repr(nn.Sequential(layer))


def test_half_precision_stays_half_precision() -> None:
    layer = LearnableDropout(3)
    assert layer(torch.ones(2, 3, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_rate_outside_zero_and_one_is_refused(rate: float) -> None:
    with pytest.raises(DropoutError, match=r"rate: want .* got"):
        LearnableDropout(4, rate)


@pytest.mark.usefixtures("without_type_checks")
def test_wrong_input_is_named() -> None:
    with pytest.raises(DropoutError, match="want 4 units along axis -1, got 5"):
        LearnableDropout(4)(torch.ones(2, 5))
    with pytest.raises(DropoutError, match="want floating point, got torch.int64"):
        LearnableDropout(4)(torch.ones(2, 4, dtype=torch.long))
    with pytest.raises(DropoutError, match="add a batch axis"):
        LearnableDropout(4)(torch.ones(4))
    with pytest.raises(DropoutError, match="units: want at least 1"):
        LearnableDropout(0)
    with pytest.raises(DropoutError, match="scale: want 'inverted', 'none' or 'alpha', got 'mean'"):
        LearnableDropout(4, scale="mean")  # pyright: ignore[reportArgumentType]
    with pytest.raises(DropoutError, match="logit: want shape"):
        LearnableDropout(4, logit=LearnableDropout(3).logit)
    with pytest.raises(DropoutError, match=r"rate: want none beside a logit, which has one, got 0\.3; leave it out"):
        LearnableDropout(4, 0.3, logit=LearnableDropout(4).logit)
    with pytest.raises(DropoutError, match="examples: want one rate, no channels and no unit_dim, got .*unit_dim=1"):
        LearnableDropout(examples=True, unit_dim=1)


def test_layer_in_eval_mode_samples_inside_a_context_alone() -> None:
    layer = LearnableDropout(100).eval()
    x = torch.ones(2, 100)
    assert torch.equal(layer(x), x)
    with masks.drawn(layer):
        assert not torch.equal(layer(x), x)


@pytest.mark.parametrize("scale", ["none", "inverted", "alpha"])
def test_rate_gets_no_gradient_outside_an_objective(scale) -> None:
    """Autograd has the path-wise half alone, which points the wrong way."""
    layer = LearnableDropout(4, scale=scale)
    y = layer(torch.randn(3, 4, requires_grad=True)).sum()
    y.backward()
    assert layer.logit.grad is None
