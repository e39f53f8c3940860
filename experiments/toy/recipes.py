r"""The paper's toy example: how far each gradient estimator is from the truth, where the truth can be enumerated.

$$ g = \nabla_\alpha \frac1N \sum_{i=1}^{N} \mathbb{E}_{z_i \sim \mathrm{Ber}(\sigma(\alpha))}
   \big(y_i - v^\top(z_i \odot \mathrm{ReLU}(w x_i + b))\big)^2, \qquad y_i = v^\top (w x_i + b) $$

One input, two hidden units, one output; weights are random and fixed, and only $\alpha_1, \alpha_2$ are learned. One
Monte-Carlo draw is one estimate of all of $g$: every example has masks of its own.

Boluki et al., Learnable Bernoulli Dropout for Bayesian Deep Learning, AISTATS 2020, section "Toy Example".
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.threads import one_thread
from experiments.toy.record import PARAMETERS, names, styled
from lbdrop import estimators
from lbdrop.errors import DropoutError
from lbdrop.io.records import provenance

__all__ = [
    "Accuracy",
    "Problem",
    "Settings",
    "accuracy",
    "bias_test",
    "concrete",
    "draw_balanced",
    "draw_problem",
    "estimate",
    "exact",
    "run",
    "square",
]


# All tensors of a chunk stay within a few megabytes: faster than one large block, and the same memory for any --draws.
CHUNK = 25

Track = Callable[[Sequence[Any], str], Iterable[Any]]
"""Shows how far a loop is: takes what is looped over and what to call it."""


@dataclass(frozen=True)
class Settings:
    """Everything that decides the numbers; the defaults are the published run."""

    seed: int = 0
    draws: int = 200
    grid: int = 13
    low: float = 0.05
    high: float = 0.95
    examples: int = 3000
    least_overlap: float = 0.25
    """The network is redrawn until both units are on together for this share of the inputs,"""
    least_balance: float = 0.25
    """and until neither contributes less than this share of what the other does, as root mean squares."""
    temperature: float = 0.1
    """Of Concrete dropout, as in the code of Gal et al. 2017."""
    trace_draws: int = 50
    trace_steps: int = 100
    learning_rate: float = 1.0
    networks: int = 12
    """Further random networks on which the comparison is repeated; these are taken as they come."""
    networks_grid: int = 4
    networks_draws: int = 100

    def __post_init__(self) -> None:
        for name in ("draws", "grid", "trace_draws", "networks_grid", "networks_draws"):
            if getattr(self, name) < 2:
                raise DropoutError(f"{name}: want at least 2, got {getattr(self, name)}")


class Problem(NamedTuple):
    """A network and its data, reduced to what the loss of a mask depends on."""

    y: Float[Tensor, "examples"]
    reach: Float[Tensor, "examples units"]
    """What each hidden unit adds to the output when it is kept."""
    weights: dict[str, list[float]]

    def residuals(self, z: Float[Tensor, "*draws examples units"]) -> Float[Tensor, "*draws examples 1"]:
        # Column by column: a sum over an axis of two takes three times as long.
        kept = sum(z[..., unit] * self.reach[:, unit] for unit in range(2))
        return (self.y - kept).unsqueeze(-1)

    def losses(self, z: Float[Tensor, "*draws examples units"]) -> Float[Tensor, "*draws examples 1"]:
        return self.residuals(z).square()

    def slopes(self, z: Float[Tensor, "*draws examples units"]) -> Float[Tensor, "*draws examples units"]:
        """∂loss/∂z, what a backward pass would give."""
        return self.residuals(z) * (-2 * self.reach)


class Accuracy(NamedTuple):
    """Of one estimator at every keep rate, against the exact gradient."""

    bias: Float[Tensor, "cells units"]
    std: Float[Tensor, "cells units"]
    mse: Float[Tensor, "cells units"]
    z: Float[Tensor, "cells units"]
    """The bias in standard errors."""


# ---------------------------------------------------------------------------------------------------- truth and guesses


def draw_problem(settings: Settings, generator: torch.Generator) -> Problem:
    """A standard-normal network, and data from the same network without ReLU and dropout."""
    w, b, v = torch.randn(3, 2, generator=generator)
    hidden = torch.randn(settings.examples, 1, generator=generator) * w + b
    names = {"input_weights": w, "input_biases": b, "output_weights": v}
    # An output bias would be in y as well as in the prediction, and cancel.
    return Problem(hidden @ v, hidden.relu() * v, {name: _round(value) for name, value in names.items()})


def draw_balanced(settings: Settings, generator: torch.Generator) -> Problem:
    """A network whose two units both matter, and matter together: with others there is little to look at."""
    while True:
        problem = draw_problem(settings, generator)
        overlap = (problem.reach != 0).all(1).double().mean()
        sizes = problem.reach.square().mean(0).sqrt()
        if overlap >= settings.least_overlap and sizes.min() >= settings.least_balance * sizes.max():
            return problem


def exact(problem: Problem, keep: Float[Tensor, "units"]) -> Float[Tensor, "units"]:
    r"""$\sum_z P(z)\, \bar f(z)\, (z - p)$ over the four masks, $\bar f$ being the mean loss of all examples."""
    keep = keep.double()
    masks = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.double)] * 2)
    double = Problem(problem.y.double(), problem.reach.double(), problem.weights)
    mean_losses = double.losses(masks.unsqueeze(1)).mean((1, 2))
    chances = torch.where(masks > 0, keep, 1 - keep).prod(1)
    return (chances * mean_losses) @ (masks - keep)


def estimate(
    problem: Problem,
    keep: Float[Tensor, "units"],
    draws: int,
    temperature: float,
    generator: torch.Generator,
    active_only: bool = False,
) -> dict[str, Float[Tensor, "draws units"]]:
    """``draws`` independent estimates of the gradient by every estimator.

    A unit that is off for an example has no gradient there; ``active_only`` makes use of it, as ``lbdrop.Objective``
    does and the paper does not.
    """
    keep = keep.float()
    used = (problem.reach != 0).float() if active_only else torch.ones(())
    chunks = [min(CHUNK, draws - done) for done in range(0, draws, CHUNK)]
    parts = [
        {name: (g * used).mean(1) for name, g in _per_example(problem, keep, chunk, temperature, generator).items()}
        for chunk in chunks
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in names()}


def _per_example(
    problem: Problem, keep: Tensor, draws: int, temperature: float, generator: torch.Generator
) -> dict[str, Float[Tensor, "draws examples units"]]:
    shape = (draws, *problem.reach.shape)
    # ARM and DisARM see the same pairs, so what differs between them is the estimator.
    pair = estimators.antithetic(keep, 2, shape, generator)
    f_pair = problem.losses(pair.z)
    two = estimators.independent(keep, 2, shape, generator)
    found = {
        "arm": estimators.arm(pair.uniforms, f_pair),
        "disarm": estimators.disarm(pair.z, keep, f_pair),
        "double-cv": estimators.double_control_variate(two.z, keep, problem.losses(two.z), problem.slopes(two.z)),
        "concrete": concrete(problem, keep, torch.rand(shape, generator=generator), temperature),
    }
    for name, each in estimators.REGISTERED.items():
        draw = each.draw(keep, each.masks, shape, generator)
        losses, slopes = problem.losses(draw.z), problem.slopes(draw.z)
        site = estimators.Site(draw, keep, slopes, losses, lambda t: t.sum(-1), lambda t: t.unsqueeze(-1))
        (found[name],) = each.gradients([site])
    return found


def concrete(
    problem: Problem, keep: Float[Tensor, "units"], u: Float[Tensor, "*draws examples units"], temperature: float
) -> Float[Tensor, "*draws examples units"]:
    r"""The reparametrised gradient through $z = \sigma((\alpha + \mathrm{logit}\,u)/t)$, the chain rule written out."""
    z = torch.sigmoid((torch.logit(keep) + torch.logit(u, eps=1e-7)) / temperature)
    return problem.slopes(z) * z * (1 - z) / temperature


# --------------------------------------------------------------------------------------------------------- experiments


def square(settings: Settings, size: int) -> Float[Tensor, "cells units"]:
    """All pairs of ``size`` keep rates, the first parameter's varying slowest."""
    rates = torch.linspace(settings.low, settings.high, size, dtype=torch.double)
    return torch.cartesian_prod(rates, rates)


def accuracy(
    problem: Problem, keeps: Iterable[Tensor], estimates: Callable[[Problem, Tensor], dict[str, Tensor]]
) -> tuple[Float[Tensor, "cells units"], dict[str, Accuracy]]:
    """The exact gradients at ``keeps``, and how every estimator does there."""
    truths: list[Tensor] = []
    rows: dict[str, list[Accuracy]] = {name: [] for name in names()}
    for keep in keeps:
        truths.append(exact(problem, keep))
        for name, draws in estimates(problem, keep).items():
            rows[name].append(_accuracy(draws.double(), truths[-1]))
    return torch.stack(truths), {name: _joined(torch.stack, found) for name, found in rows.items()}


def _joined(join: Callable[[list[Tensor]], Tensor], parts: Sequence[Accuracy]) -> Accuracy:
    return Accuracy(*(join(list(column)) for column in zip(*parts, strict=True)))


def _accuracy(draws: Tensor, truth: Tensor) -> Accuracy:
    bias, std = draws.mean(0) - truth, draws.std(0)
    # Single precision is exact to about 1e-7 of the gradient: an estimator without variance is not biased by that.
    standard_error = std / math.sqrt(len(draws)) + 1e-6 * truth.norm() + 1e-30
    return Accuracy(bias, std, (draws - truth).square().mean(0), bias / standard_error)


def trace(problem: Problem, settings: Settings, generator: torch.Generator, track: Track) -> dict[str, Any]:
    """Descend along the exact gradient from keep rates of one half, and estimate it at every step on the way."""
    logits = torch.zeros(2, dtype=torch.double)
    keeps, truths = [], []
    means: dict[str, list[Tensor]] = {name: [] for name in names()}
    for _ in track(range(settings.trace_steps), "gradient descent"):
        keeps.append(logits.sigmoid())
        truths.append(exact(problem, keeps[-1]))
        estimates = estimate(problem, keeps[-1], settings.trace_draws, settings.temperature, generator)
        for name, draws in estimates.items():
            means[name].append(draws.double().mean(0))
        logits = logits - settings.learning_rate * truths[-1]
    truth = torch.stack(truths)
    paths = {name: torch.stack(found) for name, found in means.items()}
    return {
        "keep": _by_parameter(torch.stack(keeps)),
        "exact": _by_parameter(truth),
        "estimates": {name: _by_parameter(path) for name, path in paths.items()},
        "mean_abs_error": {name: _by_parameter((path - truth).abs().mean(0)) for name, path in paths.items()},
    }


def run(settings: Settings, track: Track = lambda items, _: items) -> dict[str, Any]:
    """The whole experiment as one JSON-ready record: surfaces, traces, their summary, and the same on other networks."""
    started = time.perf_counter()
    with one_thread():
        record = _run(settings, track)
    record["provenance"]["seconds"] = round(time.perf_counter() - started, 1)
    return record


def _run(settings: Settings, track: Track) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(settings.seed)
    # All networks come first, so that they depend on the seed alone and not on how many masks are drawn.
    problem = draw_balanced(settings, generator)
    others = [draw_problem(settings, generator) for _ in range(settings.networks)]
    keeps = square(settings, settings.grid)
    estimates = partial(estimate, draws=settings.draws, temperature=settings.temperature, generator=generator)
    truth, found = accuracy(problem, track(keeps.unbind(), "keep rates"), estimates)
    size = (settings.grid, settings.grid)
    return {
        "experiment": "toy",
        "settings": asdict(settings),
        "provenance": provenance(),
        "network": {**problem.weights, "share_on": _round((problem.reach != 0).double().mean(0))},
        "summary": summarise(found, settings.draws),
        "networks": {
            "all_units": compare(others, settings, generator, track, active_only=False),
            "active_units": compare(others, settings, generator, track, active_only=True),
        },
        "grid": _round(keeps[: settings.grid, 1]),
        "exact": _by_parameter(truth, size),
        "surfaces": {
            name: {kind: _by_parameter(getattr(of, kind), size) for kind in ("bias", "std", "mse")}
            for name, of in found.items()
        },
        "trace": trace(problem, settings, generator, track),
    }


def compare(
    problems: Sequence[Problem], settings: Settings, generator: torch.Generator, track: Track, active_only: bool
) -> dict[str, dict[str, Any]]:
    """The comparison on other networks, everything pooled: was the first one special?"""
    estimates = partial(
        estimate,
        draws=settings.networks_draws,
        temperature=settings.temperature,
        generator=generator,
        active_only=active_only,
    )
    keeps = square(settings, settings.networks_grid).unbind()
    runs: dict[str, list[Accuracy]] = {name: [] for name in names()}
    for problem in track(problems, "other networks" + ", active units only" * active_only):
        alive = (problem.reach != 0).any(0)  # a unit that is off for every example has nothing to estimate
        for name, found in accuracy(problem, keeps, estimates)[1].items():
            runs[name].append(Accuracy(*(values[:, alive].flatten() for values in found)))
    pooled = {name: _joined(torch.cat, found) for name, found in runs.items() if found}
    return {
        name: {
            **bias_test(of.z, settings.networks_draws),
            "lowest_mse_share": _lowest_share(pooled, name),
            "mse_below_concrete_share": _round((of.mse < pooled["concrete"].mse).double().mean()),
            "median_mse_over_arm": _round((of.mse / pooled["arm"].mse).median()),
        }
        for name, of in pooled.items()
    }


# ------------------------------------------------------------------------------------------------------------- summary


def summarise(found: dict[str, Accuracy], draws: int) -> dict[str, dict[str, dict[str, Any]]]:
    """Per estimator and parameter: is it biased, and how far is one estimate from the truth on average?"""
    summary: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in found}
    for unit, parameter in enumerate(PARAMETERS):
        here = {name: Accuracy(*(values[:, unit] for values in of)) for name, of in found.items()}
        for name, of in here.items():
            summary[name][parameter] = {
                **bias_test(of.z, draws),
                "mean_abs_bias": _round(of.bias.abs().mean()),
                "mean_std": _round(of.std.mean()),
                "mean_mse": _round(of.mse.mean()),
                # What it would be if an estimator of one mask were given the two that the others have.
                "mean_mse_at_two_masks": _round((of.bias.square() + of.std.square() * styled(name).masks / 2).mean()),
                "lowest_mse_share": _lowest_share(here, name),
            }
    return summary


def _lowest_share(found: dict[str, Accuracy], name: str) -> float:
    """In which share of the cells this estimator has the lowest mean squared error of all."""
    lowest = torch.stack([of.mse for of in found.values()]).argmin(0)
    return _round((lowest == list(found).index(name)).double().mean())


def bias_test(z: Float[Tensor, "cells"], draws: int) -> dict[str, Any]:
    """Two ways to be found biased: far off in more than 1 % of the cells, or a little off in all of them.

    Without bias a cell passes |z| = 4 once in 10,000 times, and the mean of z² is 1 ± √(2/cells), of which five are
    allowed: on the published grid an unbiased estimator fails less than once in 10,000 runs. With fewer than 30 draws z
    is too far from normal to decide.
    """
    far, mean_square = (z.abs() > 4).double().mean(), z.square().mean()
    unbiased = bool(far <= 0.01 and mean_square <= 1 + 5 * math.sqrt(2 / z.numel()))
    return {
        "verdict": "undecided" if draws < 30 else "unbiased" if unbiased else "biased",
        "max_abs_z": _round(z.abs().max()),
        "share_abs_z_above_4": _round(far),
        "mean_squared_z": _round(mean_square),
    }


def _by_parameter(values: Tensor, size: tuple[int, ...] = (-1,)) -> dict[str, Any]:
    """The last axis by name, each entry in the shape ``size``."""
    return {
        name: _round(column.reshape(size) if column.dim() else column)
        for name, column in zip(PARAMETERS, values.unbind(-1), strict=True)
    }


def _round(values: Tensor) -> Any:
    """Four significant digits, as nested lists."""
    if values.dim():
        return [_round(value) for value in values]
    return float(f"{float(values):.4g}")
