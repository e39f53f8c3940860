"""Draws that are made in unusual ways: in place, checkpointed, in loops, with attention that is masked out altogether."""

import contextlib
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lbdrop
from lbdrop import DropoutError, Objective, masks
from lbdrop.dropout import learned_layers


class Applied(nn.Module):
    """A linear layer, and behind it whatever a test wants; the module is passed for its mode."""

    def __init__(self, then: Callable[[nn.Module, Tensor], Tensor]):
        super().__init__()
        self.fc, self.then = nn.Linear(4, 4), then

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self, self.fc(x))


def attend(module: nn.Module, x: Tensor, mask: Tensor | None = None) -> Tensor:
    q = x[:, None]
    return F.scaled_dot_product_attention(q, q, q, mask, dropout_p=0.3 if module.training else 0.0)[:, 0]


def test_dropout_in_place_reaches_a_caller_who_goes_on_with_its_input() -> None:
    def in_place(module: nn.Module, x: Tensor) -> Tensor:
        F.dropout(x, 0.5, module.training, inplace=True)
        return x

    x = torch.randn(50, 4)
    model = lbdrop.convert(Applied(in_place), example=x, verbose=False)
    assert 0.3 < float((model(x) == 0).float().mean()) < 0.7
    Objective(model, examples=50, estimator="double-cv-4")(lambda m: m(x).square().mean(1)).backward()
    (layer,) = learned_layers(model).values()
    assert layer.logit.grad is not None
    assert float(layer.logit.grad) != 0


@pytest.mark.parametrize("boolean", [True, False])
def test_query_that_may_attend_to_nothing_has_an_output_of_zero(boolean: bool) -> None:
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[1] = False
    given = mask if boolean else torch.zeros(5, 5).masked_fill(~mask, float("-inf"))
    x = torch.randn(3, 5, 4)
    model = lbdrop.convert(Applied(lambda m, h: attend(m, h, given)), example=x, verbose=False)
    assert bool((model(x)[:, 1] == 0).all())
    Objective(model, examples=3)(lambda m: m(x).flatten(1).square().mean(1)).backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_unscaled_mask_of_attention_has_its_mean_in_eval_mode() -> None:
    x = torch.randn(3, 5, 4)
    model = lbdrop.convert(Applied(attend), example=x, scale="none", verbose=False).eval()
    with masks.deterministic(model):
        expected = model(x)
    assert torch.allclose(model(x), expected)
    assert torch.allclose(model(x), 0.7 * attend(model, model.fc(x)))


def by_hand(module: nn.Module, x: Tensor) -> Tensor:
    return x * x.new_empty((len(x), 1)).bernoulli_(0.8) / 0.8 if module.training else x


def test_unscaled_mask_that_the_model_scales_by_itself_is_refused() -> None:
    model = Applied(by_hand)
    with pytest.raises(DropoutError, match=r"mask0: want scale='inverted' for a mask that the model draws"):
        lbdrop.convert(model, example=torch.randn(3, 4), scale="none", verbose=False)
    assert [name for name, _ in model.named_children()] == ["fc"]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # torch, of passes without gradients
@pytest.mark.parametrize("reentrant", [True, False])
def test_draw_in_a_checkpointed_function_is_refused(reentrant: bool) -> None:
    def checkpointed(module: nn.Module, x: Tensor) -> Tensor:
        inside = lambda h: F.dropout(h.tanh(), 0.5, module.training).square()  # noqa: E731
        return checkpoint(inside, x, use_reentrant=reentrant)

    x = torch.randn(6, 4)
    model = lbdrop.convert(Applied(checkpointed), example=x, scheme="mc", verbose=False)
    with pytest.raises(
        DropoutError, match="want no dropout inside a checkpointed function of a module, got one in Applied"
    ):
        model(x)
    model.eval()(x).sum().backward()


@pytest.mark.parametrize("reentrant", [True, False])
def test_draw_in_a_checkpointed_module_is_drawn_again(reentrant: bool) -> None:
    x = torch.randn(6, 4, requires_grad=True)
    model = Applied(lambda module, h: F.dropout(h.tanh(), 0.5, module.training).square())
    lbdrop.convert(model, example=x, scheme="mc", verbose=False)
    gradients = []
    for run in (model, lambda x: checkpoint(model, x, use_reentrant=reentrant)):
        torch.manual_seed(1)
        model.zero_grad()
        output = run(x)
        assert isinstance(output, Tensor)
        output.sum().backward()
        gradients.append([p.grad for p in model.fc.parameters()])
    assert all(map(torch.equal, *gradients))


def test_draws_that_convert_did_not_see_are_told() -> None:
    def loop(module: nn.Module, x: Tensor) -> Tensor:
        h = x[:, 0]
        for step in range(1, x.shape[1]):
            h = F.dropout(torch.tanh(h + x[:, step]), 0.5, module.training)
        return h

    model = lbdrop.convert(Applied(loop), example=torch.randn(2, 3, 4), verbose=False)
    with pytest.warns(
        UserWarning, match=r"\['dropout0', 'dropout1'\], got also dropout2, which stays at its fixed rate 0.5"
    ):
        model(torch.randn(2, 4, 4))
    model.eval()(torch.randn(2, 4, 4))


def test_hook_that_fails_before_the_draws_are_answered_leaves_the_outer_module_answering() -> None:
    def fail(*_: object) -> None:
        raise KeyError("mine")

    def caught(module: nn.Module, x: Tensor) -> Tensor:
        with contextlib.suppress(KeyError):
            x = module.get_submodule("inner")(x)
        return F.dropout(x, 0.5, module.training)

    model, x = Applied(caught), torch.ones(500, 4)
    model.inner = Applied(lambda module, h: F.dropout(h, 0.5, module.training))
    lbdrop.convert(model, example=x, verbose=False)
    for layer in learned_layers(model).values():
        layer.logit.data.fill_(-2.0)
    model.inner.register_forward_pre_hook(fail, prepend=True)
    for _ in range(2):
        assert float((model(x) == 0).float().mean()) > 0.8


def test_keys_and_values_may_have_different_numbers_of_heads() -> None:
    class Grouped(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            p = 0.2 if self.training else 0.0
            key, value = x[:, :2], x[:, :1]
            return F.scaled_dot_product_attention(x, key, value, dropout_p=p, enable_gqa=True)

    model, x = Grouped().eval(), torch.randn(3, 4, 5, 8)
    before = model(x)
    lbdrop.convert(model, example=x, verbose=False)
    with masks.fixed(model, {"learned_draws.attention0": torch.full((3, 4, 5, 5), 0.8)}):
        torch.testing.assert_close(model(x), before)


def test_masks_of_uniforms_without_an_example_are_named_in_the_first_step() -> None:
    class DropEdge(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.drop = nn.Linear(3, 3), lbdrop.LearnableDropout()

        def forward(self, x: Tensor) -> Tensor:
            return self.drop(self.fc(x * (torch.rand(x.shape) >= 0.2)))

    model = nn.Sequential(DropEdge())
    losses = lambda m: m(torch.randn(4, 3)).square().sum(1)  # noqa: E731
    objective = Objective(model, examples=9)
    with pytest.warns(UserWarning, match=r"masks of torch.rand by hand: \['0 \(DropEdge\)'\]"):
        objective(losses)
    objective(losses)  # told once
    with pytest.raises(DropoutError, match=r"outside of its dropouts: \['0 \(DropEdge: rand.default\)'\]"):
        lbdrop.convert(
            nn.Sequential(DropEdge(), nn.Dropout()).apply(plain_dropout), example=torch.randn(4, 3), verbose=False
        )


def plain_dropout(module: nn.Module) -> None:
    if hasattr(module, "drop"):
        module.drop = nn.Dropout()
