"""Self-tuning refuses data, losses, models and optimisers from which rates would learn nothing, and says what to do."""

import pytest
import torch
from helpers.small_self_tuned import crossed, small
from torch import Tensor, nn

import lbdrop
from lbdrop import DropoutError, Objective, SelfTuning, parameter_groups


def test_an_example_serves_models_whose_batches_are_not_their_inputs() -> None:
    model, x, y = small()
    batches = [{"inputs": x, "labels": y}]

    def losses(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return crossed(m, batch["inputs"], batch["labels"])

    objective = Objective(model, SelfTuning(model, batches, steps=100, example=x))
    assert torch.isfinite(objective(losses, batches[0]))
    with pytest.raises(DropoutError, match="pass example=x"):
        SelfTuning(small()[0], batches, steps=100)


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
    objective = Objective(model, SelfTuning(model, (pair for pair in [(x, y)]), steps=100, plain=0.0, every=1))
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
    with pytest.raises(DropoutError, match=r"plain in \[0, 1\)"):
        SelfTuning(model, [(x, y)], steps=100, plain=1.0)
    with pytest.raises(DropoutError, match="start: want a rate"):
        SelfTuning(model, [(x, y)], steps=100, start=1.0)
    with pytest.raises(DropoutError, match=r"start: want a rate from 0\.03"):
        SelfTuning(model, [(x, y)], steps=100, start=0.01)  # a run taken up again would take it for one that is off
    with pytest.raises(DropoutError, match="want one of them"):
        Objective(model, SelfTuning(model, [(x, y)], steps=100), held_out=[(x, y)])
    with pytest.raises(DropoutError, match="pass example=x"):
        SelfTuning(small()[0], [(torch.randn(5, 99), y)], steps=100)
    with pytest.raises(DropoutError, match="convert"):
        SelfTuning(nn.Linear(2, 2), [(x, y)], steps=100)
