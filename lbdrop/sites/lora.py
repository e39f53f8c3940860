r"""A learned gate for each rank of a LoRA adapter, so that training says how many ranks a layer needs.

$$ y = W x + s\, B\, (z \odot A x), \qquad z_k \sim \mathrm{Ber}(p_k), \quad p_k = \sigma(\alpha_k), \qquad
   \mathrm{KL} = \sum_k c\, p_k - H(p_k) $$

One draw opens or closes a rank for a whole example. Masks are not inverted: a gate that is nearly always closed takes its
rank out of the deterministic pass too, so that :func:`lbdrop.prune` can cut it. The cost $c$ of an open rank is the log odds
of a Bernoulli prior: a rank stays open if it lowers the loss, summed over the training set, by more than $c$ nats.

Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022. Works on the layers of ``peft``.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lbdrop._torch import bare_module, parameters_of
from lbdrop.dropout import LearnableDropout
from lbdrop.errors import DropoutError

__all__ = ["GatedRanks", "RankGate", "adapters", "cut_ranks", "dropouts", "rank_projections"]

START_RATE = 0.1
"""The drop rate of a gate before training: open, and with enough noise to learn from."""


class RankGate(LearnableDropout):
    """A gate per rank, drawn once per example, with a prior of its own: an open rank has a cost."""

    def __init__(self, ranks: int, cost: float):
        super().__init__(ranks, START_RATE, channels=True, unit_dim=-1, scale="none")
        self.cost = cost


class GatedRanks(nn.Linear):
    """``lora_A`` with a gate behind it, under the names that ``peft`` saves.

    ``weight`` is what the deterministic pass multiplies by, gates included, because ``peft`` reads it where it merges.
    """

    gate: RankGate

    @classmethod
    def of(cls, original: nn.Linear, cost: float) -> "GatedRanks":
        """Take over the parameters of ``original``, which keep their names."""
        module = bare_module(cls, original)
        gate = RankGate(original.out_features, cost).to(original.weight.device)
        gate.requires_grad_(original.weight.requires_grad)  # an adapter that is not trained keeps its gates
        module.gate = gate.train(original.training)
        return module

    @property
    def weight(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.ungated * self.gate.gain()[:, None].to(self.ungated.dtype)

    @property
    def ungated(self) -> nn.Parameter:
        """The parameter itself."""
        weight = parameters_of(self)["weight"]
        assert isinstance(weight, nn.Parameter)
        return weight

    def forward(self, input: Tensor) -> Tensor:
        return self.gate(F.linear(input, self.ungated))

    def plain(self) -> nn.Linear:
        """Back to ``nn.Linear``, the gates' means in its weight."""
        module = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        module.weight = nn.Parameter(self.weight.detach(), requires_grad=self.ungated.requires_grad)
        return module.train(self.training)


def adapters(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The LoRA layers of ``model`` by name, recognised by the name of their package, which is not imported."""
    for name, module in model.named_modules():
        if type(module).__module__.startswith("peft.tuners.lora") and hasattr(module, "lora_dropout"):
            yield name, module


def dropouts(model: nn.Module) -> dict[str, bool]:
    """The dropouts of adapters by name, ``nn.Identity`` where their rate is 0, and whether a pass reaches them."""
    return {
        # An embedding has a dropout too, but its forward does not call it.
        f"{name}.lora_dropout.{adapter}": adapter in layer.active_adapters and adapter in layer.lora_A
        for name, layer in adapters(model)
        for adapter in layer.lora_dropout
    }


def rank_projections(model: nn.Module) -> dict[str, nn.Linear]:
    """Every ``lora_A`` in use by name; an error that names the place where there is none to gate."""
    found: dict[str, nn.Linear] = {}
    for name, layer in adapters(model):
        for adapter in layer.active_adapters:
            if adapter not in layer.lora_A and adapter not in layer.lora_embedding_A:
                continue  # an adapter of other layers
            down = dict(layer.lora_A.items()).get(adapter)
            if not isinstance(down, nn.Linear) or adapter in layer.lora_variant:
                kind = type(layer.lora_variant.get(adapter, layer)).__name__
                raise DropoutError(
                    f"rank_gates: want plain LoRA on linear layers, got {kind} at {name}; leave it out of target_modules,"
                    " or convert without rank_gates"
                )
            found[f"{name}.lora_A.{adapter}"] = down
    if not found:
        raise DropoutError(
            f"rank_gates: want a model with LoRA adapters, got {type(model).__name__}; make one with"
            " peft.get_peft_model(model, peft.LoraConfig(...)) first"
        )
    return found


@torch.no_grad()
def cut_ranks(model: nn.Module, threshold: float) -> None:
    """Cut, in place, the ranks whose keep rate is below ``threshold``, and change the adapter's settings accordingly.

    A layer that needs no rank keeps one of weight zero, since ``peft`` has no adapter without ranks.
    """
    for name, layer in adapters(model):
        for adapter, down in layer.lora_A.items():
            if not isinstance(down, GatedRanks):
                continue
            keep = down.gate.keep
            kept = keep >= threshold
            plain = down.plain()
            plain.weight *= kept[:, None]
            if not kept.any():
                kept[keep.argmax()] = True
            up = layer.lora_B[adapter]
            plain.weight = nn.Parameter(plain.weight[kept], requires_grad=plain.weight.requires_grad)
            up.weight = nn.Parameter(up.weight[:, kept], requires_grad=up.weight.requires_grad)
            ranks = plain.out_features = up.in_features = int(kept.sum())
            layer.lora_A[adapter] = plain
            layer.r[adapter] = ranks
            # The scaling must not change, also after saving: peft computes it from alpha and the number of ranks.
            alpha = layer.scaling[adapter] * (math.sqrt(ranks) if layer.use_rslora[adapter] else ranks)
            layer.lora_alpha[adapter] = alpha
            _update_settings(model, name, adapter, ranks, alpha)


def _update_settings(model: Any, name: str, adapter: str, ranks: int, alpha: float) -> None:
    """Note the new numbers of ranks in the model's ``peft`` configuration, so that it can be saved and loaded."""
    settings = getattr(model, "peft_config", {}).get(adapter)
    if settings is not None:
        place = name.removeprefix("base_model.model.")
        settings.rank_pattern = {**settings.rank_pattern, place: ranks}
        settings.alpha_pattern = {**settings.alpha_pattern, place: alpha}
