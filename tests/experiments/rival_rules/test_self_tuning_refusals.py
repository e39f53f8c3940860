"""Self-tuning refuses data, losses, models and optimisers from which rates would learn nothing, and says what to do."""

import pytest
import torch
from helpers.small_classifier import cross_entropies, small_classifier
from torch import Tensor, nn

import lbdrop
from experiments.rival_rules.self_tuning import SelfTuning, parameter_groups
from lbdrop import DropoutError, Objective


def test_example_serves_models_whose_batches_are_not_their_inputs() -> None:
    model, x, y = small_classifier()
    batches = [{"inputs": x, "labels": y}]

    def losses(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return cross_entropies(m, batch["inputs"], batch["labels"])

    objective = Objective(model, SelfTuning(model, batches, steps=100, example=x))
    assert torch.isfinite(objective(losses, batches[0]))
    with pytest.raises(DropoutError, match="pass example=x"):
        SelfTuning(small_classifier()[0], batches, steps=100)


def test_unusable_held_out_data_are_refused_in_the_first_step() -> None:
    model, x, y = small_classifier()
    objective = Objective(model, SelfTuning(model, [(x * torch.nan, y)], steps=10_000, example=x))
    with pytest.raises(DropoutError, match="of held-out data"):
        objective(cross_entropies, x, y)
    assert torch.isfinite(model[0].logit)
    objective = Objective(model, SelfTuning(model, [(x, y + 99)], steps=10_000))
    with pytest.raises(IndexError):
        objective(cross_entropies, x, y)


def test_loss_without_its_batch_is_refused() -> None:
    model, x, y = small_classifier()
    objective = Objective(model, SelfTuning(model, [(x, y)], steps=1000, every=1))
    with pytest.raises(DropoutError, match="got no batch"):
        objective(lambda m: cross_entropies(m, x, y))


def trained(without: str | None = None, batches: int = 1) -> None:
    """Forty steps until rates are frozen; the optimiser has all parameters but some, and steps after so many batches."""
    model, x, y = small_classifier()
    objective = Objective(model, SelfTuning(model, [(x, y)], steps=100, every=1))
    groups = parameter_groups(model, lr=1e-2, rate_lr=1e-2)
    left_out = {id(p) for name, p in model.named_parameters() if without and without in name}
    for group in groups:
        group["params"] = [p for p in group["params"] if id(p) not in left_out]
    optimizer = torch.optim.Adam(groups)
    for step in range(1, 41):
        objective(cross_entropies, x, y).backward()
        if step % batches == 0:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("without", ["response", "3.responses.8.shift"])
def test_responses_that_no_optimiser_has_are_refused(without: str) -> None:
    with pytest.raises(DropoutError, match="parameter_groups"):
        trained(without)


def test_many_batches_to_one_optimiser_step_are_no_mistake() -> None:
    trained(batches=15)


def test_held_out_data_that_run_out_are_refused() -> None:
    model, x, y = small_classifier()
    objective = Objective(model, SelfTuning(model, (pair for pair in [(x, y)]), steps=100, plain=0.0, every=1))
    with pytest.raises(DropoutError, match="not a generator"):
        for _ in range(3):
            objective(cross_entropies, x, y)


def test_dropout_that_sees_other_examples_is_refused() -> None:
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
        objective(cross_entropies, x, y)
    assert all(layer.offsets is None for layer in objective.layers.values())


def test_impossible_settings_are_refused() -> None:
    model, x, y = small_classifier()
    with pytest.raises(DropoutError, match="spread > 0"):
        SelfTuning(model, [(x, y)], steps=100, spread=0.0)
    with pytest.raises(DropoutError, match=r"plain in \[0, 1\)"):
        SelfTuning(model, [(x, y)], steps=100, plain=1.0)
    with pytest.raises(DropoutError, match="start: want a rate"):
        SelfTuning(model, [(x, y)], steps=100, start=1.0)
    with pytest.raises(DropoutError, match=r"start: want a rate from 0\.03"):
        SelfTuning(model, [(x, y)], steps=100, start=0.01)
    with pytest.raises(DropoutError, match="want one of them"):
        Objective(model, SelfTuning(model, [(x, y)], steps=100), held_out=[(x, y)])
    with pytest.raises(DropoutError, match="pass example=x"):
        SelfTuning(small_classifier()[0], [(torch.randn(5, 99), y)], steps=100)
    with pytest.raises(DropoutError, match="convert"):
        SelfTuning(nn.Linear(2, 2), [(x, y)], steps=100)
