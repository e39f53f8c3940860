"""From users' likes and a choice of method to a fitted model: a network, a linear method, or both together."""

from dataclasses import dataclass
from typing import Any

import torch

from lbdrop.errors import DropoutError
from lbdrop.recommend.data.interactions import Interactions
from lbdrop.recommend.linear.blend import Blend
from lbdrop.recommend.linear.closed_form import EDLAE, USUAL_RATE, USUAL_RIDGE
from lbdrop.recommend.linear.methods import Linear
from lbdrop.recommend.method_args import AUTO, EXPERTS, MethodChoice, choose_method, sized_for_data
from lbdrop.recommend.model.product import Product
from lbdrop.recommend.model.settings import Settings
from lbdrop.recommend.model.vae import VAE
from lbdrop.recommend.train.experts import fit_experts
from lbdrop.recommend.train.fit import History
from lbdrop.recommend.train.fit import fit as fit_network
from lbdrop.recommend.train.validation import hold_out

__all__ = ["FittedModel", "fit_model"]


@dataclass(frozen=True)
class FittedModel:
    """What was fitted, and by which method."""

    model: VAE | Linear | Product
    choice: MethodChoice
    """The method, which the default finds out by itself."""
    settings: Settings | None = None
    """Of the network, if there is one."""
    history: History | None = None
    reason: str | None = None
    """In one line, why this method; ``None`` if it was asked for."""


def fit_model(
    data: Interactions,
    choice: MethodChoice,
    *,
    validation: float | int,
    seed: int,
    device: torch.device | str | None,
    budget: float | None,
    **training: Any,
) -> FittedModel:
    """The arguments are those of :class:`~lbdrop.recommend.Recommender`; ``training`` is passed to the network's fit."""
    if choice.settings is None:
        model, trained, held = choice.linear(seed, device), data, None
        if model.learns_from_held_out:
            trained, held = hold_out(data, validation, seed)
        return FittedModel(_contiguous(model.fit(trained.rows, held)), choice)
    trained, held = hold_out(data, validation, seed)
    settings = sized_for_data(choice.settings, choice.explicit, len(trained.users), len(data.items))
    if not choice.together:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = VAE(len(data.items), settings, users=len(trained.users))
        history = fit_network(network, trained.rows, held, device=device, seed=seed, **training)
        return FittedModel(network, choice, settings, history)
    if held is None and choice.method != AUTO:
        raise DropoutError(
            f"{EXPERTS}: want validation users with five items, who decide how both are combined, got none; choose another"
            ' method, such as "edlae" or dropout="learned"'
        )
    if held is None:
        usual = EDLAE(USUAL_RATE, USUAL_RIDGE, device=device).fit(data.rows)
        reason = "the linear model alone: no validation users to decide on more"
        return FittedModel(_contiguous(usual), choose_method("edlae", None, {}), reason=reason)
    found = fit_experts(
        trained.rows, held, Blend(device=device), settings, seed=seed, choose=choice.method == AUTO, budget=budget, **training
    )  # fmt: skip
    if isinstance(found.model, EDLAE):
        return FittedModel(_contiguous(found.model), choose_method("blend", None, {}), reason=found.reason)
    _contiguous(found.model.linear)
    both = MethodChoice(EXPERTS, found.settings, {}, choice.explicit)
    return FittedModel(found.model, both, found.settings, found.history, found.reason)


def _contiguous(model: Linear) -> Linear:
    """As after loading, so that sums have the same order."""
    return model.restore({name: tensor.contiguous() for name, tensor in model.state.items()})
