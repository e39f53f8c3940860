"""Fit a product of experts: rates and ridge of the linear model, then the network, then how the two are combined.

Validation users decide everything: the rates and ridge, the network's best epoch, the weight of the linear scores by NDCG@100,
and the temperature by the likelihood. Where they say that the network is no help, the linear model alone is kept. Then they
are released: the linear model is solved with them.
"""

import copy
import time
import warnings
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize
from torch import Tensor

from lbdrop.metrics import ranking
from lbdrop.passes.price import DEFAULT_BUDGET
from lbdrop.recommend.data.rows import Batch, Rows, users_at_once
from lbdrop.recommend.data.splits import HeldOut
from lbdrop.recommend.linear.closed_form import EDLAE
from lbdrop.recommend.model.product import Product
from lbdrop.recommend.model.settings import Settings
from lbdrop.recommend.model.vae import VAE
from lbdrop.recommend.train.evaluate import HeldOutRows
from lbdrop.recommend.train.fit import History
from lbdrop.recommend.train.fit import fit as fit_network
from lbdrop.recommend.train.loop import Loop, launch
from lbdrop.recommend.train.weights import Chosen, best_weight, ndcg_of_each, some_users

__all__ = ["Fitted", "combine", "fit_experts"]

MIN_EPOCHS = 5
"""A network of fewer epochs adds nothing to the linear model."""
MOST_WORK = {"cpu": 3e13, "cuda": 3e15}
"""Multiply-adds of a network that is trained without being asked for: on two cores, or a GPU, some ten minutes."""
GRID = np.concatenate([[0.0], np.geomspace(0.5, 128, 17)])
"""Weights of the linear scores that are tried; 0 is the network alone."""


@dataclass(frozen=True)
class Fitted:
    """A fitted model, how its network was trained, and in one line why it is this one."""

    model: Product | EDLAE
    settings: Settings | None
    history: History | None
    reason: str


def fit_experts(
    rows: Any,
    held_out: HeldOut,
    linear: EDLAE,
    settings: Settings,
    *,
    seed: int,
    choose: bool,
    budget: float | None = None,
    **training: Any,
) -> Fitted:
    """Both experts and their weights.

    Args:
        rows: training users × items.
        held_out: validation users.
        linear: the linear model, not fitted yet.
        settings: the network's.
        seed: draws the network's weights, order and masks.
        choose: keep the linear model alone where the network does not help, or has no time.
        budget: seconds for everything; epochs of the network are as many as fit in. Without, and where it chooses, as many as
            ``MOST_WORK`` allows.
        training: further arguments of :func:`lbdrop.recommend.train.fit.fit`.
    """
    start = time.perf_counter()
    with warnings.catch_warnings():  # validation users judge the result; nobody asked for a rate
        warnings.filterwarnings("ignore", "edlae: the drop rate ran to the bound")
        gram = linear.begin(rows, held_out, None if budget is None else budget / 4)
    solved = time.perf_counter() - start
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = VAE(rows.shape[1], settings, users=rows.shape[0])
    epochs, limit = settings.epochs, f"{budget or 0:g} s are no time for a network"
    if budget is not None:
        left = budget - 2 * solved  # it is solved once more in the end
        epochs = int(left / _seconds_per_epoch(network, rows, settings, linear.device, seed)) if left > 0 else 0
    elif choose:  # by counting, so that the same seed gives the same model on any machine of the kind
        epochs = int(MOST_WORK.get(linear.device.type, MOST_WORK["cpu"]) / _work_per_epoch(network, rows))
        limit = f"a network would take long on so much data ({Product.name!r} or budget= fits one)"
    if epochs < settings.epochs:
        if choose and epochs < MIN_EPOCHS:
            return Fitted(linear.release(gram, rows, held_out), None, None, f"the linear model alone: {limit}")
        network.settings = settings = replace(settings, epochs=max(epochs, MIN_EPOCHS))
    history = fit_network(network, rows, held_out, device=linear.device, seed=seed, **training)
    network.eval()
    product = Product(network, linear).to(linear.device)
    product.network = network
    found = combine(product, held_out)
    said = f"NDCG@100 {found.gain:+.4f} ± {found.error:.4f} on validation users beside the linear model alone"
    linear.release(gram, rows, held_out)
    if choose and found.gain <= found.error:  # less may be chance, and is not worth the time of a network
        return Fitted(linear, None, None, f"the linear model alone; with a network {said}")
    return Fitted(product, settings, history, f"the linear model and a network together: {said}")


def combine(product: Product, held_out: HeldOut) -> Chosen:
    """Set the product's weights; return what it gains over the linear model alone."""
    users = some_users(held_out, product.weights.device)

    def weighed(batch: Batch) -> list[Tensor]:
        network, linear = product.network.plain_scores(batch), product.linear.scores(batch)
        return [*(network + float(t) * linear for t in GRID), linear]

    found = ndcg_of_each(weighed, users)
    chosen = best_weight(found[:-1], found[-1])
    product.weights[0] = float(GRID[chosen.place])
    product.weights[1:] = _temperature(product, users)
    return chosen


def _temperature(product: Product, users: HeldOutRows) -> Float[Tensor, "2"]:
    """Level and slope, by the history's length, of the temperature with the best likelihood of the hidden items."""
    size = min(users.fold_in.users, users_at_once(users.fold_in.items, 500))
    batch, target = (next(each.batches(size, shuffle=False)) for each in users)
    experts, hidden = product.experts(batch), ranking.which_items(target.user, target.item, (size, batch.items))

    typical = float(batch.counts.clamp(min=1).log().mean())

    def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
        free = torch.tensor(values, dtype=torch.float32, device=batch.device, requires_grad=True)
        scores = product.combined(experts, batch, torch.stack([free[0] - typical * free[1], free[1]]))
        loss = -torch.where(hidden, scores, 0.0).sum() / hidden.sum()
        (grad,) = torch.autograd.grad(loss, free)
        return float(loss.detach()), grad.double().cpu().numpy()

    # From the best of some levels, because far from it the likelihood is flat or too steep.
    start = min((np.array([level, 0.0]) for level in np.linspace(-6.0, 1.0, 15)), key=lambda x: objective(x)[0])
    bounds = [(start[0] - 1, start[0] + 1), (-2, 2)]
    level, slope = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 30}).x
    return torch.tensor([level - typical * slope, slope], dtype=torch.float32, device=batch.device)


def _work_per_epoch(network: VAE, rows: Any) -> float:
    """Multiply-adds: each weight matrix but the table of items, forward twice and backward once, for each user."""
    widths = [weight.numel() for name, weight in network.named_parameters() if weight.dim() > 1 and "table" not in name]
    return 4.0 * rows.shape[0] * sum(widths)


def _seconds_per_epoch(network: VAE, rows: Any, settings: Settings, device: torch.device, seed: int) -> float:
    """How long an epoch will take, from a few steps of a copy."""
    on_device = Rows.from_csr(rows, device)
    loop = Loop(copy.deepcopy(network).to(device), on_device, settings, launch(device), seed=seed, recorded=False)
    generator, beta = torch.Generator(device).manual_seed(seed), torch.tensor(settings.beta_cap, device=device)
    times = []
    for batch in islice(
        on_device.batches(settings.batch, shuffle=True, generator=torch.Generator().manual_seed(seed)), 5
    ):
        start = time.perf_counter()
        loop._step(batch, beta, False, generator)
        times.append(time.perf_counter() - start)
    plain = float(np.median(times[1:] or times)) * on_device.steps(settings.batch)
    return plain * (DEFAULT_BUDGET if settings.dropout == "learned" else 1.0)  # steps in which rates learn take longer
