"""Self-tuning: where the best rate is known it is found, from any start; and nothing but the held-out loss moves a rate."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lbdrop
from lbdrop import DropoutError, Objective, SelfTuning, parameter_groups
from lbdrop.objective import _Batch
from lbdrop.response import Response

Pair = tuple[Tensor, Tensor]


def squares(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x)[:, 0] - y) ** 2


def crossed(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def small(rate: float = 0.3) -> tuple[nn.Module, Tensor, Tensor]:
    model = nn.Sequential(nn.Dropout(rate), nn.Linear(6, 8), nn.ReLU(), nn.Dropout(rate), nn.Linear(8, 3))
    return lbdrop.convert(model, verbose=False), torch.randn(20, 6), torch.randint(0, 3, (20,))


def stirred(model: nn.Module) -> None:
    """Responses as if they had been learned."""
    for module in model.modules():
        if isinstance(module, Response):
            nn.init.normal_(module.stretch, std=0.3)
            if module.shift is not None:
                nn.init.normal_(module.shift, std=0.3)


# ------------------------------------------------------------------------------------------------- a known right answer


def regression(noise: float = 3.0) -> tuple[Pair, Pair]:
    g = torch.Generator().manual_seed(0)
    w = 0.5 * torch.randn(40, generator=g)

    def some(n: int) -> Pair:
        x = torch.randn(n, 40, generator=g)
        return x, x @ w + noise * torch.randn(n, generator=g)

    return some(60), some(2000)


def held_out_loss(train: Pair, held: Pair, rate: float) -> float:
    """Dropout of a linear regression's inputs is ridge: min ‖y − Xw‖² + rate/(1−rate)·Σ_j (XᵀX)_jj w_j²."""
    x, y = train
    gram = x.T @ x
    w = torch.linalg.solve(gram + rate / (1 - rate) * torch.diag(gram.diagonal()), x.T @ y)
    return float(((held[0] @ w - held[1]) ** 2).mean())


@pytest.mark.parametrize("start", [0.05, 0.8])
def test_the_best_rate_of_a_linear_regression_is_found_from_far_below_and_far_above(start: float) -> None:
    train, held = regression()
    grid = [i / 50 for i in range(1, 48)]
    best = min(grid, key=lambda rate: held_out_loss(train, held, rate))
    torch.manual_seed(0)
    model = lbdrop.convert(nn.Sequential(nn.Dropout(0.5), nn.Linear(40, 1, bias=False)), verbose=False)
    objective = Objective(model, SelfTuning(model, [held], steps=900, share=0.8, start=start, masks=4))
    optimizer = torch.optim.Adam(parameter_groups(model, lr=0.02, rate_lr=0.02))
    for _ in range(900):
        optimizer.zero_grad()
        objective(squares, *train).backward()
        optimizer.step()
    assert model[0].p == pytest.approx(best, abs=0.1)
    assert best == pytest.approx(0.32)  # neither end of the grid


def test_where_every_rate_hurts_dropout_is_switched_off() -> None:
    train, held = regression(noise=0.0)  # no noise, as many equations as it takes: nothing to hold back
    torch.manual_seed(0)
    model = lbdrop.convert(nn.Sequential(nn.Dropout(0.5), nn.Linear(40, 1, bias=False)), verbose=False)
    objective = Objective(model, SelfTuning(model, [held], steps=600, masks=2))
    optimizer = torch.optim.Adam(parameter_groups(model, lr=0.02, rate_lr=0.02))
    for _ in range(600):
        optimizer.zero_grad()
        objective(squares, *train).backward()
        optimizer.step()
    assert model[0].keep == 1.0
    assert not model[0].logit.requires_grad


# --------------------------------------------------------------------------------------------------------- one step


def test_rates_get_no_gradient_and_move_at_looks_alone() -> None:
    model, x, y = small()
    objective = Objective(model, SelfTuning(model, [(x, y)], steps=100, every=3))
    stirred(model)
    moved = []
    for _ in range(12):
        model.zero_grad()
        before = model[0].logit.detach().clone()
        objective(crossed, x, y).backward()
        moved.append(not torch.equal(model[0].logit, before))
        assert model[0].logit.grad is None
        assert model[1].weight.grad.abs().sum() > 0
        assert model[3].responses["8"].stretch.grad.abs().sum() > 0
    # The first looks only fill the window.
    assert moved == [False] * 8 + [True] + [False] * 2 + [True]


def test_without_a_response_the_held_out_loss_does_not_know_the_rates() -> None:
    model, x, y = small()
    rule = SelfTuning(model, [(x, y)], steps=100)
    _, slopes = rule.look(_Batch(Objective(model, rule), crossed, (x, y)))
    assert not slopes.any()


def test_the_slope_is_that_of_each_held_out_loss_through_the_responses() -> None:
    torch.manual_seed(0)
    model, x, y = small()
    x = x.double()
    rule = SelfTuning(model.double(), [(x, y)], steps=100)
    stirred(model.double())
    offsets, slopes = rule.look(_Batch(Objective(model, rule), crossed, (x, y)))
    assert offsets.std() == pytest.approx(1.0, abs=0.4)
    assert offsets.shape == slopes.shape == (20, 2)

    def shifted(by: float, which: int) -> Tensor:
        there = offsets.clone()
        there[:, which] += by
        for layer in rule.layers.values():
            layer.offsets = there
        loss = crossed(model.eval(), x, y)
        for layer in rule.layers.values():
            layer.offsets = None
        return loss.detach()

    for which in range(2):
        expected = (shifted(1e-4, which) - shifted(-1e-4, which)) / 2e-4
        torch.testing.assert_close(slopes[:, which], expected, atol=1e-6, rtol=0)
        assert expected.abs().max() > 1e-3


def test_each_example_is_masked_at_its_own_rate() -> None:
    torch.manual_seed(0)
    layer = lbdrop.LearnableDropout(rate=0.5)
    layer.offsets = torch.tensor([[-2.0], [0.0], [2.0]])
    mask = layer.draw(1, (3, 4000), torch.ones(3, 4000), None)[0]
    assert torch.allclose(mask.mean(1), torch.sigmoid(layer.offsets[:, 0]), atol=0.03)
    # Inverted scaling by each example's own keep rate leaves the mean as it is.
    assert torch.allclose(layer.masked(torch.ones(3, 4000), mask).mean(1), torch.ones(3), atol=0.15)


@pytest.mark.parametrize("masks", [1, 3])
def test_many_masks_and_one_give_one_loss_and_leave_no_offsets(masks: int) -> None:
    model, x, y = small()
    objective = Objective(model, held_out=[(x, y)], steps=100, masks=masks)
    assert isinstance(objective.rule, SelfTuning)
    loss = objective(crossed, x, y)
    assert loss.shape == ()
    loss.backward()
    assert all(layer.offsets is None for layer in objective.layers.values())


def test_a_look_leaves_modes_and_running_statistics_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
    lbdrop.convert(model, verbose=False)
    x, y = torch.randn(20, 6), torch.randint(0, 3, (20,))
    rule = SelfTuning(model, [(100 + x, y)], steps=100, every=1)
    model[3].eval()
    objective = Objective(model, rule)
    objective(crossed, x, y).backward()
    assert model[1].running_mean.abs().max() < 1  # of the training batch, not of the held-out one
    assert [module.training for module in model] == [True, True, True, False]


def test_after_training_the_responses_do_not_show() -> None:
    model, x, y = small()
    before = model.eval()(x)
    SelfTuning(model, [(x, y)], steps=100)
    stirred(model)
    assert torch.equal(model(x), before)
    plain = lbdrop.bake(model)
    assert torch.allclose(plain(x), before)
    assert not any("response" in name for name, _ in plain.named_parameters())


def test_masked_attention_stays_masked() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    lbdrop.convert(layer, verbose=False)
    x, future = torch.randn(3, 5, 8), torch.triu(torch.full((5, 5), -torch.inf), 1)

    def losses(model: nn.Module, x: Tensor) -> Tensor:
        return model(x, src_mask=future)[:, 0].pow(2).mean(1)

    rule = SelfTuning(layer, [(x,)], steps=100, generator=torch.Generator().manual_seed(1))
    stirred(layer)
    objective = Objective(layer, rule)
    first = objective(losses, x)
    rule.generator.manual_seed(1)
    rule.restart()
    changed = torch.cat([x[:, :1], torch.randn(3, 4, 8)], 1)
    assert torch.allclose(objective(losses, changed), first)


def test_every_parameter_is_in_one_group_and_responses_learn_like_rates() -> None:
    model, x, y = small()
    SelfTuning(model, [(x, y)], steps=100)
    groups = parameter_groups(model, lr=1e-3, rate_lr=0.02, weight_decay=0.1)
    grouped = [id(p) for group in groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())
    assert [group["lr"] for group in groups] == [1e-3, 0.02, 0.02]
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0, 0.0]


def test_a_restart_gives_the_same_look_again() -> None:
    torch.manual_seed(0)
    model, x, y = small()
    rule = SelfTuning(model, [(x[:10], y[:10]), (x[10:], y[10:])], steps=100)
    stirred(model)
    batch = _Batch(Objective(model, rule), crossed, (x, y))

    def slopes() -> Tensor:
        torch.manual_seed(5)
        return rule.look(batch)[1]

    rule.restart()
    first = slopes()
    assert not torch.equal(slopes(), first)
    rule.restart()
    assert torch.equal(slopes(), first)


def test_a_rule_made_anew_goes_on_with_what_was_learned() -> None:
    model, x, y = small()
    objective = Objective(model, SelfTuning(model, [(x, y)], steps=100))
    stirred(model)
    for _ in range(40):
        objective(crossed, x, y)
    before, rate = model[3].responses["8"].stretch, model[0].p
    assert rate != pytest.approx(0.1)
    again = SelfTuning(model, [(x, y)], steps=100)
    assert model[3].responses["8"].stretch is before
    assert again.slopes.steps == 40
    assert not again.settled
    assert model[0].p == rate


@pytest.mark.parametrize("stopped", [3, 7])
def test_a_run_taken_up_again_from_its_state_ends_where_it_would_have(stopped: int) -> None:
    torch.manual_seed(0)
    first, x, y = small()
    batches = [(x[:10], y[:10]), (x[10:], y[10:])]

    def train(model: nn.Module, optimizer: Any, rule: SelfTuning, epochs: range) -> None:
        objective = Objective(model, rule)
        for epoch in epochs:
            torch.manual_seed(epoch)
            rule.restart()
            for _ in range(8):
                optimizer.zero_grad()
                objective(crossed, x, y).backward()
                optimizer.step()

    def made(model: nn.Module) -> tuple[SelfTuning, Any]:
        rule = SelfTuning(model, batches, steps=80, examples=20)
        return rule, torch.optim.Adam(parameter_groups(model, lr=1e-2, rate_lr=1e-2))

    second = copy.deepcopy(first)
    rule, optimizer = made(first)
    train(first, optimizer, rule, range(10))
    rule, optimizer = made(second)
    train(second, optimizer, rule, range(stopped))
    third, _, _ = small()
    rule, other = made(third)
    third.load_state_dict(copy.deepcopy(second.state_dict()))
    other.load_state_dict(optimizer.state_dict())
    assert rule.slopes.steps == min(8 * stopped, 40)
    train(third, other, rule, range(stopped, 10))
    for name, value in first.state_dict().items():
        torch.testing.assert_close(third.state_dict()[name], value, rtol=0, atol=0)


def test_a_self_tuned_state_loads_into_a_model_that_was_only_converted() -> None:
    model, x, y = small()
    SelfTuning(model, [(x, y)], steps=100)
    stirred(model)
    other, _, _ = small()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(x), model.eval()(x))
    assert torch.equal(other[3].responses["8"].shift, model[3].responses["8"].shift)


def test_one_dropout_called_at_two_widths_answers_at_both() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.first, self.second = nn.Dropout(0.2), nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.drop(torch.relu(self.first(self.drop(x)))))

    model = lbdrop.convert(Twice(), verbose=False)
    x, y = torch.randn(10, 6), torch.randint(0, 3, (10,))
    objective = Objective(model, SelfTuning(model, [(x, y)], steps=1000, every=1))
    objective(crossed, x, y).backward()
    assert sorted(model.drop.responses) == ["6", "8"]
    assert all(r.stretch.grad.abs().sum() > 0 for r in model.drop.responses.values())
    with pytest.raises(DropoutError, match="want inputs of"):
        model.drop.offsets = torch.zeros(2, 1)
        model.drop(torch.ones(2, 5))


def test_attention_written_by_hand_on_three_axes_stays_causal() -> None:
    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.drop = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.2)

        def forward(self, x: Tensor) -> Tensor:
            scores = self.q(x) @ self.k(x).transpose(1, 2)
            future = torch.triu(torch.full(scores.shape[1:], -torch.inf), 1)
            return self.drop(torch.softmax(scores + future, -1)) @ self.v(x)

    model = lbdrop.convert(Causal(), verbose=False)
    x = torch.randn(3, 5, 4)
    SelfTuning(model, [(x,)], steps=100)
    stirred(model)
    model.eval()
    model.drop.offsets = torch.ones(3, 1)
    changed = torch.cat([x[:, :1], torch.randn(3, 4, 4)], 1)
    assert torch.equal(model(x)[:, 0], model(changed)[:, 0])
    assert not torch.allclose(model(x)[:, 4], model(changed)[:, 4])


def test_calls_without_gradients_are_no_steps() -> None:
    model, x, y = small()
    rule = SelfTuning(model, [(x, y)], steps=100)
    objective = Objective(model, rule)
    for _ in range(4):
        objective(crossed, x, y).backward()
        with torch.no_grad():
            objective(crossed, x, y)
    assert rule.slopes.steps == 4


def test_a_rate_that_is_frozen_stays_and_the_others_learn() -> None:
    model, x, y = small()
    model[0].logit.requires_grad_(False)
    objective = Objective(model, SelfTuning(model, [(x, y)], steps=100, every=1))
    stirred(model)
    for _ in range(10):
        objective(crossed, x, y).backward()
    assert model[0].p == pytest.approx(0.3)
    assert model[3].p != pytest.approx(0.1, abs=1e-4)


# ------------------------------------------------------------------------------------------------------------- settled


def settled(**options: Any) -> tuple[nn.Module, Objective, Tensor, Tensor]:
    """A rule whose rates are settled after one step, with held-out examples that can be told from the others."""
    model, x, y = small()
    held = [(100 + torch.arange(3.0)[:, None].expand(3, 6), torch.zeros(3, dtype=torch.long))]
    objective = Objective(model, SelfTuning(model, held, steps=100, share=0.01, **options))
    objective(crossed, x, y)
    return model, objective, x, y


@pytest.mark.parametrize("examples", [None, 7])
def test_held_out_examples_are_given_back_at_their_share_once_rates_are_settled(examples: int | None) -> None:
    _, objective, x, y = settled(examples=examples)
    seen: list[float] = []
    batches = []

    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        seen.extend(x[x[:, 0] > 90, 0].tolist())
        batches.append(len(x))
        return crossed(model, x, y)

    for _ in range(10):
        objective(losses, x[:5], y[:5])
    assert set(batches) == {5}
    # 3 of all 10 examples are held out: of 50 that were trained on, 15 are, each as often as the others.
    assert sorted(seen) == ([] if examples is None else sorted([100.0, 101.0, 102.0] * 5))


def test_when_rates_are_settled_they_stay_and_masks_are_drawn_at_them() -> None:
    model, objective, x, y = settled()
    assert objective.rule.settled
    seen = []
    model[3].register_forward_hook(lambda layer, inputs, output: seen.append(layer.offsets))
    for _ in range(3):
        objective(crossed, x, y).backward()
    assert seen == [None] * len(seen)
    assert len(seen) >= 3
    assert model[0].p == pytest.approx(0.1)
    assert model[0].logit.grad is None
    assert model[3].responses["8"].stretch.grad is None


def test_rates_that_are_off_stay_off_when_their_state_is_loaded() -> None:
    model, _, x, y = settled()
    model[0].logit.data.fill_(50.0)
    other, _, _ = small()
    again = Objective(other, SelfTuning(other, [(x, y)], steps=10_000))
    other.load_state_dict(model.state_dict())
    again(crossed, x, y).backward()
    assert other[0].keep == 1.0
    assert not other[0].logit.requires_grad
    assert other[3].logit.requires_grad
    # What stays where it is has nothing to answer to.
    assert not other[3].responses["8"].stretch.grad[0].any()
    assert other[3].responses["8"].stretch.grad[1].any()


def test_held_out_examples_unlike_the_others_cannot_be_given_back() -> None:
    _, objective, x, y = settled(examples=7)
    with pytest.raises(DropoutError, match="want batches like those of training, .* pass examples=None"):
        for _ in range(3):
            objective(lambda m, x, y, w: crossed(m, x, y), x, y, y)


def test_an_example_serves_models_whose_batches_are_not_their_inputs() -> None:
    model, x, y = small()
    batches = [{"inputs": x, "labels": y}]

    def losses(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return crossed(m, batch["inputs"], batch["labels"])

    objective = Objective(model, held_out=batches, steps=100, example=x)
    assert torch.isfinite(objective(losses, batches[0]))
    with pytest.raises(DropoutError, match="pass example=x"):
        Objective(small()[0], held_out=batches, steps=100)


# ----------------------------------------------------------------------------------------------------------- mistakes


def test_held_out_data_with_a_nan_is_refused_and_nothing_changes() -> None:
    model, x, y = small()
    objective = Objective(model, SelfTuning(model, [(x * torch.nan, y)], steps=100, every=1, example=x))
    with pytest.raises(DropoutError, match="of held-out data"):
        objective(crossed, x, y)
    assert torch.isfinite(model[0].logit)


def test_many_batches_to_one_optimiser_step_are_no_mistake() -> None:
    model, x, y = small()
    objective = Objective(model, SelfTuning(model, [(x, y)], steps=1000, every=1))
    optimizer = torch.optim.Adam(parameter_groups(model, lr=1e-2, rate_lr=1e-2))
    for step in range(600):
        objective(crossed, x, y).backward()
        if step % 120 == 119:
            optimizer.step()
            optimizer.zero_grad()


def test_a_loss_without_its_batch_is_refused() -> None:
    model, x, y = small()
    objective = Objective(model, SelfTuning(model, [(x, y)], steps=1000, every=1))
    with pytest.raises(DropoutError, match="got no batch"):
        objective(lambda m: crossed(m, x, y))


@pytest.mark.parametrize("forgotten", ["response", "3.responses.8.shift"])
def test_responses_that_no_optimiser_has_are_an_error_not_silence(forgotten: str) -> None:
    model, x, y = small()
    objective = Objective(model, SelfTuning(model, [(x, y)], steps=1000, every=1))
    kept = [p for name, p in model.named_parameters() if forgotten not in name]
    optimizer = torch.optim.Adam(kept, lr=0.01)
    with pytest.raises(DropoutError, match="parameter_groups"):
        for _ in range(399):  # rates are settled then
            optimizer.zero_grad()
            objective(crossed, x, y).backward()
            optimizer.step()


def test_held_out_data_that_runs_out_is_refused() -> None:
    model, x, y = small()
    objective = Objective(model, SelfTuning(model, (pair for pair in [(x, y)]), steps=100, every=1))
    with pytest.raises(DropoutError, match="not a generator"):
        for _ in range(3):
            objective(crossed, x, y)


def test_a_dropout_that_sees_other_examples_is_refused() -> None:
    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.out = nn.Dropout(0.2), nn.Dropout(0.2), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.second(self.first(x).reshape(-1, 4))
            return self.out(y).reshape(len(x), -1, 3).mean(1)

    model = lbdrop.convert(Folded(), verbose=False)
    x, y = torch.randn(5, 2, 4), torch.randint(0, 3, (5,))
    objective = Objective(model, SelfTuning(model, [(x, y)], steps=100))
    with pytest.raises(DropoutError, match="got 5 and 10"):
        objective(crossed, x, y)
    assert all(layer.offsets is None for layer in objective.layers.values())


def test_settings_that_cannot_be_are_refused() -> None:
    model, x, y = small()
    with pytest.raises(DropoutError, match="spread > 0"):
        SelfTuning(model, [(x, y)], steps=100, spread=0.0)
    with pytest.raises(DropoutError, match="start: want a rate"):
        SelfTuning(model, [(x, y)], steps=100, start=1.0)
    with pytest.raises(DropoutError, match="want one of them"):
        Objective(model, SelfTuning(model, [(x, y)], steps=100), held_out=[(x, y)])
    with pytest.raises(DropoutError, match="steps: want how many training steps the run has"):
        Objective(model, held_out=[(x, y)])
    with pytest.raises(DropoutError, match="pass example=x"):
        SelfTuning(small()[0], [(torch.randn(5, 99), y)], steps=100)
    with pytest.raises(DropoutError, match="convert"):
        SelfTuning(nn.Linear(2, 2), [(x, y)], steps=100)
