"""Rivals that have a posterior of weights: SWAG, Laplace by laplace-torch, IVON by ivon-opt."""

import copy
import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

from experiments.uncertainty.bench import PART, SAMPLES, Bench, Fitted, losses
from lbdrop import metrics

__all__ = ["ivon", "laplace_all", "laplace_last", "swag"]

RANK = 20
COLLECTED = 0.25
"""SWAG goes on for a quarter of the steps, at a constant step."""
SWAG_LR = (1e-3, 3e-4)
PRECISIONS, JUDGED = (1.0, 10.0, 100.0, 1e3, 1e4, 1e5), 500
"""Of Laplace's prior, judged on as many validation examples: linearised, each takes a Jacobian."""
IVON = tuple((lr, hess) for lr in (0.3, 0.1, 0.03) for hess in (0.1, 0.5))


def swag(bench: Bench) -> Fitted:
    r"""SWAG: $w \sim N(\bar w, \tfrac12 \Sigma_{diag} + \tfrac1{2(K-1)} D D^T)$ of iterates (Maddox et al. 2019, eq. 1).

    Written here: libraries that have it bring a trainer of their own. It goes on from the network without dropout, at the
    constant step that validation likes better.
    """
    start, before = bench.fixed(0.0)
    tried = [_swag(bench, copy.deepcopy(start), lr) for lr in SWAG_LR]
    best = _best_on_validation(bench, [one for one, _ in tried])
    seconds = before + sum(s for _, s in tried)
    return Fitted(tried[best][0], seconds, copies=2 + RANK, extra={"lr": SWAG_LR[best]})


def _swag(bench: Bench, model: nn.Module, lr: float) -> tuple[Callable[[Tensor, int], Tensor], float]:
    steps = max(RANK, int(COLLECTED * bench.steps))
    every = max(1, steps // (2 * RANK))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    weights = parameters_to_vector(model.parameters()).detach()
    mean, square, deviations, count = torch.zeros_like(weights), torch.zeros_like(weights), [], 0
    batches, seconds, step = bench.batches(member=1), [], 0
    model.train()
    with bench.timed(seconds):
        while step < steps:
            for x, y in batches:
                loss = losses(model, x, y).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step % every == 0:
                    weights = parameters_to_vector(model.parameters()).detach()
                    count += 1
                    mean += (weights - mean) / count
                    square += (weights.square() - square) / count
                    deviations = [*deviations, weights - mean][-RANK:]
                if step == steps:
                    break
    model.eval()
    variance, low_rank = (square - mean.square()).clamp(min=1e-30), torch.stack(deviations)

    def draw(generator: torch.Generator) -> Tensor:
        diagonal = variance.sqrt() * torch.randn(mean.shape, generator=generator, device=mean.device)
        mixed = torch.randn(len(low_rank), generator=generator, device=mean.device) @ low_rank
        return mean + (diagonal + mixed / math.sqrt(len(low_rank) - 1)) / math.sqrt(2)

    def probabilities(x: Tensor, samples: int) -> Tensor:
        generator = torch.Generator(x.device).manual_seed(bench.seed)
        found = []
        for _ in range(samples):
            vector_to_parameters(draw(generator), model.parameters())
            found.append(bench.deterministic(model)(x, 1))
        return torch.cat(found)

    return probabilities, seconds[0]


def laplace_last(bench: Bench) -> Fitted:
    """Laplace over the last layer's weights, full Hessian factored by Kronecker; the library's default."""
    return _laplace(bench, "last_layer")


def laplace_all(bench: Bench) -> Fitted:
    """Laplace over all weights by Kronecker factors, linearised, as the library recommends."""
    return _laplace(bench, "all")


def _laplace(bench: Bench, subset: str) -> Fitted:
    """Prior precision by the marginal likelihood or one of a grid, whichever validation likes best; probit predictive."""
    Laplace: Any = import_module("laplace").Laplace
    model, before = bench.fixed(0.0)
    seconds: list[float] = []
    with bench.timed(seconds):
        posterior: Any = Laplace(
            copy.deepcopy(model).eval(), "classification", subset_of_weights=subset, hessian_structure="kron"
        )
        posterior.fit(DataLoader(TensorDataset(*bench.parts.train), batch_size=PART))
        posterior.optimize_prior_precision(method="marglik")
        tried = [posterior.prior_precision.clone(), *(torch.tensor([p], device=bench.device) for p in PRECISIONS)]
        best = _best_on_validation(bench, [_glm(posterior, precision) for precision in tried], JUDGED)
    extra = {"prior precision": tried[best].flatten().tolist(), "by": "validation" if best else "marglik"}
    copies = 2 if subset == "last_layer" else 3
    return Fitted(_glm(posterior, tried[best]), before + seconds[0], copies=copies, passes=1, extra=extra)


def _glm(posterior: Any, precision: Tensor) -> Callable[[Tensor, int], Tensor]:
    def probabilities(x: Tensor, samples: int) -> Tensor:
        posterior.prior_precision = precision
        found = [posterior(part, pred_type="glm", link_approx="probit").detach() for part in x.split(PART // 2)]
        return torch.cat(found)[None]

    return probabilities


def ivon(bench: Bench) -> Fitted:
    """IVON with the step and the initial Hessian that validation likes best of six."""
    tried = [_ivon(bench, lr, hess) for lr, hess in IVON]
    best = _best_on_validation(bench, [one for one, _ in tried])
    return Fitted(tried[best][0], sum(s for _, s in tried), copies=2,
                  extra={"lr": IVON[best][0], "hess_init": IVON[best][1]})  # fmt: skip


def _ivon(bench: Bench, lr: float, hess: float) -> tuple[Callable[[Tensor, int], Tensor], float]:
    Optimizer: Any = import_module("ivon").IVON
    model = bench.network(0.0)
    optimizer: Any = Optimizer(model.parameters(), lr=lr, ess=len(bench.parts.train[0]), hess_init=hess)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, bench.steps)
    batches, seconds = bench.batches(), []
    model.train()
    with bench.timed(seconds):
        for _ in range(bench.epochs):
            for x, y in batches:
                with optimizer.sampled_params(train=True):
                    optimizer.zero_grad()
                    losses(model, x, y).mean().backward()
                optimizer.step()
                schedule.step()
    model.eval()

    def probabilities(x: Tensor, samples: int) -> Tensor:
        found = []
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            torch.manual_seed(bench.seed)
            for _ in range(samples):
                with optimizer.sampled_params():
                    found.append(bench.deterministic(model)(x, 1))
        return torch.cat(found)

    return probabilities, seconds[0]


def _best_on_validation(bench: Bench, tried: list[Callable[[Tensor, int], Tensor]], most: int = 1 << 30) -> int:
    x, y = (each[:most] for each in bench.parts.validation)

    def nll(place: int) -> float:
        probs = tried[place](x, SAMPLES).mean(0)
        return float(metrics.nll(probs, y)) if bool(probs.isfinite().all()) else math.inf

    return min(range(len(tried)), key=nll)
