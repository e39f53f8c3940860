"""Responses of a self-tuning model as if they had been learned."""

from torch import nn

from experiments.rival_rules.response import Response


def stir_responses(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, Response):
            nn.init.normal_(module.stretch, std=0.3)
            if module.shift is not None:
                nn.init.normal_(module.shift, std=0.3)
