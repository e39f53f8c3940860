"""Draws inside of functions: each has a learned rate, by the right gradient, and nothing else of the model changes."""

import copy
import io
import itertools
import pickle
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers.models_that_draw import Attention, Blocks, Deep, OwnScale, Residual, Skipping, Windows, t5_block
from torch import Tensor, nn

import lbdrop
from lbdrop import DropoutError, Objective, masks, predict
from lbdrop.dropout import learned_layers
from lbdrop.sites.example import random_draws

CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "bernoulli": (Residual, (2,)),
    "path": (Deep, (2,)),
    "attention": (lambda: Attention(True), (2, 2)),
    "by hand": (lambda: Attention(False), (2, 2)),
    "windows": (Windows, (4,)),
    "LayerDrop": (Skipping, (2,)),
    "DropBlock": (OwnScale, (2,)),
    "T5": (t5_block, (2, 2)),
}


def made(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(3)
    make, shape = CASES[name]
    model, x = make(), torch.randn(3, *shape)
    return lbdrop.convert(model, example=x, verbose=False).double(), x.double()


def losses(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x).flatten(1).sum(1) - 1).square()


class Shapes:
    """A source of masks that keep everything, and notes their shapes."""

    def __init__(self) -> None:
        self.found: dict[Any, tuple[int, ...]] = {}

    def mask(self, layer: Any, x: Tensor) -> Tensor:
        self.found[layer] = layer.mask_shape(x)
        return torch.ones(layer.mask_shape(x), dtype=x.dtype)


def exact(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The gradient of the expected mean loss by each rate, every mask of every example enumerated."""
    layers = learned_layers(model)
    total = torch.zeros((), dtype=torch.float64)
    for row in x.split(1):
        with masks.use(model, shapes := Shapes()):
            model(row)
        sizes = {name: shapes.found[layer] for name, layer in layers.items()}
        count = sum(torch.Size(size).numel() for size in sizes.values())
        for bits in itertools.product((0.0, 1.0), repeat=count):
            given, chance, rest = {}, torch.ones((), dtype=torch.float64), torch.tensor(bits, dtype=torch.float64)
            for name, size in sizes.items():
                z, rest = rest[: torch.Size(size).numel()], rest[torch.Size(size).numel() :]
                keep = layers[name].keep
                chance = chance * torch.where(z > 0, keep, 1 - keep).prod()
                given[name] = z.view(size)
            with masks.fixed(model, given):
                total = total + chance * losses(model, row).sum() / len(x)
    return list(torch.autograd.grad(total, [layer.logit for layer in layers.values()]))


@pytest.mark.parametrize("name", CASES)
def test_gradient_of_rates_is_that_of_all_masks_enumerated(name: str) -> None:
    model, x = made(name)
    expected, many = torch.stack(exact(model, x)), x.repeat(400, *[1] * (x.dim() - 1))
    objective = Objective(model, lbdrop.Bound(model, 1, weight=0.0), estimator="double-cv-4")
    logits = [layer.logit for layer in learned_layers(model).values()]
    draws = torch.stack([torch.stack(torch.autograd.grad(objective(losses, many), logits)) for _ in range(30)])
    error = draws.std(0) / 30**0.5
    assert bool((error < 0.2 * expected.abs().max()).all())  # else the test would say nothing
    assert bool(((draws.mean(0) - expected).abs() < 4 * error).all())


@pytest.mark.parametrize("name", CASES)
def test_outputs_in_eval_mode_stay_and_predictions_vary(name: str) -> None:
    make, shape = CASES[name]
    torch.manual_seed(3)
    model, x = make().eval(), torch.randn(4, *shape)
    before = model(x)
    assert torch.equal(lbdrop.convert(model, example=x, verbose=False)(x), before)
    assert torch.equal(lbdrop.bake(model)(x), before)
    assert float(predict(model, x, samples=8, kind="regression").variance.max()) > 0
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_coin_that_skips_layers_is_no_longer_tossed_and_each_layer_has_a_rate(rate: float) -> None:
    model, x = nn.Sequential(Skipping(rate), nn.Dropout(0.1)), torch.randn(4, 2)
    lbdrop.convert(model, example=x, verbose=False)
    rates = {name: round(layer.p, 6) for name, layer in learned_layers(model).items()}
    assert rates == {"1": 0.1} | ({f"0.layers.{i}.learned_draws.branch": 0.3 for i in range(3)} if rate else {})
    with masks.deterministic(model):
        assert not random_draws(model, lambda: model(x))[1]
    closed = {name: torch.zeros(4, 1) for name in rates if "branch" in name}
    with masks.fixed(model, closed):
        assert torch.equal(model(x), x) == bool(rate)
    plain = lbdrop.bake(model)
    assert not plain[0].layers[0]._forward_hooks
    assert random_draws(plain, lambda: plain(x))[1]  # the model's own coin again


def test_layer_that_is_skipped_with_all_its_outputs_is_dropped_with_all_of_them() -> None:
    class TwoOutputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.trend = nn.Linear(2, 2), nn.Linear(2, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x + torch.tanh(self.fc(x)), self.trend(x)

    class Trends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(TwoOutputs() for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            total = x.new_zeros(len(x), 3)
            for layer in self.layers:
                if self.training and torch.rand([]) < 0.3:
                    continue
                x, trend = layer(x)
                total = total + trend
            return torch.cat([x, total], 1)

    model, x = Trends(), torch.randn(4, 2)
    plain = model.eval()(x)
    lbdrop.convert(model, example=x, verbose=False)
    torch.testing.assert_close(model(x), plain)
    with masks.fixed(model, {f"layers.{i}.learned_draws.branch": torch.zeros(4, 1) for i in range(2)}):
        torch.testing.assert_close(model(x), torch.cat([x, torch.zeros(4, 3)], 1))
    with masks.fixed(
        model, {"layers.0.learned_draws.branch": torch.ones(4, 1), "layers.1.learned_draws.branch": torch.zeros(4, 1)}
    ):
        x1, trend = model.layers[0].eval().forward(x)
        torch.testing.assert_close(model(x), torch.cat([x + (x1 - x) / 0.7, trend / 0.7], 1))


def test_skip_that_does_more_than_to_pass_its_input_on_stays_and_is_named() -> None:
    class Counting(Skipping):
        def forward(self, x: Tensor) -> Tensor:
            called = 0
            for layer in self.layers:
                if self.training and torch.rand([]) < self.rate:
                    continue
                x, called = layer(x)[0], called + 1
            return x * called

    model = nn.Sequential(Counting(), nn.Dropout(0.1))
    with pytest.raises(
        DropoutError, match=r"draws at random outside of its dropouts: \['0 \(Counting: rand.default\)'\]"
    ):
        lbdrop.convert(model, example=torch.randn(4, 2), verbose=False)
    with pytest.warns(UserWarning, match="outside of its dropouts"):
        lbdrop.convert(model, example=torch.randn(4, 2), unreached="warn", verbose=False)
    assert [*learned_layers(model)] == ["1"]


def test_seeds_of_drop_block_are_dropped_around_and_scaled_by_what_is_left() -> None:
    model, x = (
        lbdrop.convert(nn.Sequential(Blocks()), example=torch.randn(4, 2), verbose=False).train(),
        torch.randn(4, 2),
    )
    (layer,) = learned_layers(model).values()
    assert layer.p == pytest.approx(0.2)
    layer.logit.data.fill_(1.0)
    with masks.fixed(model, {"0.drop.learned_draws.mask0": torch.ones(4, 1, 2, 4)}):
        whole = model(x)
    seed = torch.ones(4, 1, 2, 4)
    seed[0, 0, 0, 0] = 0.0
    with masks.fixed(model, {"0.drop.learned_draws.mask0": seed}):
        dropped = model(x)
    kept = torch.ones(4, 2, 4)
    kept[0, :, :2] = 0.0
    assert torch.allclose(dropped, whole * kept.flatten(1) * 32 / 28, atol=1e-6)


def test_every_residual_branch_has_a_rate_of_its_own() -> None:
    model, _ = made("path")
    rates = {name: round(layer.p, 6) for name, layer in learned_layers(model).items()}
    assert rates == {"path.0": 0.1, "path.1": 0.2, "path.2": 0.3}
    assert "examples" in repr(model.path[0])


@pytest.mark.parametrize("name", ["attention", "by hand"])
def test_state_copies_and_pickles_are_those_of_a_plain_model(name: str) -> None:
    model, x = made(name)
    key = "learned_draws.attention0" if name == "attention" else "learned_draws.dropout0"
    assert [*learned_layers(model)] == [key]
    model.get_submodule(key).logit.data.fill_(1.5)
    stored = io.BytesIO()
    torch.save(model.state_dict(), stored)
    stored.seek(0)
    other, _ = made(name)
    other.load_state_dict(torch.load(stored, weights_only=True))
    for each in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.manual_seed(5)
        again = each.train()(x)
        torch.manual_seed(5)
        assert torch.equal(again, model.train()(x))
        assert each.get_submodule(key).p == pytest.approx(1 - torch.sigmoid(torch.tensor(1.5)).item())


def test_rates_per_unit_of_attention_are_those_of_heads() -> None:
    class Heads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            q = x.unflatten(-1, (3, 2)).transpose(1, 2)
            out = F.scaled_dot_product_attention(q, q, q, dropout_p=0.2 if self.training else 0.0)
            return out.transpose(1, 2).flatten(2)

    model = nn.Sequential(nn.Linear(6, 6), Heads())
    x = torch.randn(4, 5, 6)
    lbdrop.convert(model, example=x, per="unit", verbose=False)
    assert learned_layers(model)["1.learned_draws.attention0"].units == 3
    Objective(model, examples=9)(lambda m: m(x).flatten(1).square().mean(1)).backward()


class Twice(nn.Module):
    """A dropout that is always called, and one in training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.fc(x), 0.2, self.training)
        return F.dropout(x, 0.3) if self.training else x


def test_calls_that_differ_between_training_and_evaluation_are_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), Twice()))
    with pytest.raises(DropoutError, match=r"1\.1: want the same calls .* got dropout1 in training alone"):
        lbdrop.convert(model, example=torch.randn(2, 3), verbose=False)
    assert not learned_layers(model)


def test_rate_of_zero_is_no_site() -> None:
    class Off(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(F.scaled_dot_product_attention(x, x, x, dropout_p=0.0), p=0.0, training=self.training)

    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.1), Off())
    lbdrop.convert(model, example=torch.randn(2, 4, 3), verbose=False)
    assert [*learned_layers(model)] == ["1"]


def test_modules_that_are_never_called_are_left_out_with_a_notice(capsys: pytest.CaptureFixture[str]) -> None:
    class Dead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.drop, self.dead = nn.Linear(3, 3), nn.Dropout(0.2), nn.Dropout(0.3)

        def forward(self, x: Tensor) -> Tensor:
            return self.drop(self.fc(x))

    model = lbdrop.convert(Dead(), example=torch.randn(2, 3))
    assert [*learned_layers(model)] == ["drop"]
    assert "left alone, never called: dead" in capsys.readouterr().out
    Objective(model, examples=9)(lambda m: m(torch.randn(4, 3)).sum(1)).backward()


def test_draw_that_no_site_reaches_is_named() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.2)

        def forward(self, x: Tensor) -> Tensor:
            return self.drop(x) + 0.1 * torch.randn_like(x)

    model = nn.Sequential(nn.Linear(3, 3), Noisy())
    with pytest.raises(DropoutError, match=r"draws at random outside of its dropouts: \['1 \(Noisy: randn_like"):
        lbdrop.convert(model, example=torch.randn(2, 3), verbose=False)
    assert isinstance(model[1].drop, nn.Dropout)
    with pytest.warns(UserWarning, match="draws at random outside"):
        lbdrop.convert(model, example=torch.randn(2, 3), unreached="warn", verbose=False)


def test_draws_in_layers_that_python_skips_by_chance_are_all_found() -> None:
    class Chance(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Twice() for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                if not self.training or random.random() > 0.4:
                    x = layer(x)
            return x

    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(torch.tanh(x), 0.2, self.training)

    model, x = Chance(), torch.randn(4, 3)
    with pytest.warns(UserWarning, match="Chance draws in training by Python's random or by numpy.random"):
        lbdrop.convert(model, example=x, verbose=False)
    assert len(learned_layers(model)) == 3
