"""Responses: one for each width, masked attention stays masked under them, and after training they do not show."""

import pytest
import torch
from helpers.learned_responses import stir_responses
from helpers.small_classifier import cross_entropies, small_classifier
from torch import Tensor, nn

import lbdrop
from experiments.rival_rules.responding import RespondingDropout
from experiments.rival_rules.self_tuning import SelfTuning
from lbdrop import DropoutError, Objective


def test_rule_replaces_every_learned_dropout_and_keeps_its_rate() -> None:
    shared = nn.Parameter(torch.zeros(()))
    first, second = (lbdrop.LearnableDropout(logit=shared, scale="none") for _ in range(2))
    model = nn.Sequential(first, nn.Linear(6, 8), second, nn.Sequential(first, nn.Linear(8, 3)))
    x, y = torch.randn(5, 6), torch.randint(0, 3, (5,))
    SelfTuning(model, [(x, y)], steps=100)
    assert all(type(layer) is RespondingDropout for layer in (model[0], model[2]))
    assert model[0] is model[3][0]
    assert model[0].logit is model[2].logit is shared
    assert model[0].scale == "none"


def test_responses_do_not_show_after_training() -> None:
    model, x, y = small_classifier()
    before = model.eval()(x)
    SelfTuning(model, [(x, y)], steps=100)
    stir_responses(model)
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

    rule = SelfTuning(layer, [(x,)], steps=100, plain=0.0, generator=torch.Generator().manual_seed(1))
    stir_responses(layer)
    objective = Objective(layer, rule)
    first = objective(losses, x)
    rule.generator.manual_seed(1)
    rule.restart()
    changed = torch.cat([x[:, :1], torch.randn(3, 4, 8)], 1)
    assert torch.allclose(objective(losses, changed), first)


def test_dropout_called_at_two_widths_responds_at_both() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.first, self.second = nn.Dropout(0.2), nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.drop(torch.relu(self.first(self.drop(x)))))

    model = lbdrop.convert(Twice(), verbose=False)
    x, y = torch.randn(10, 6), torch.randint(0, 3, (10,))
    objective = Objective(model, SelfTuning(model, [(x, y)], steps=1000, plain=0.0, every=1))
    objective(cross_entropies, x, y).backward()
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
    stir_responses(model)
    model.eval()
    model.drop.offsets = torch.ones(3, 1)
    changed = torch.cat([x[:, :1], torch.randn(3, 4, 4)], 1)
    assert torch.equal(model(x)[:, 0], model(changed)[:, 0])
    assert not torch.allclose(model(x)[:, 4], model(changed)[:, 4])
