"""What benchmarks.variance measures on one network: each estimator's variance, bias and time, beside ARM's."""

import math
import random
import statistics
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

import lbdrop
from benchmarks.variance_steps import Gradients, Settings, Stepper, load, take_turns, trained
from lbdrop import estimators
from lbdrop.dropout import Scale

__all__ = ["BASELINE", "DEFAULT", "bias", "compared", "measure", "total_variance", "variances"]

BASELINE, DEFAULT = "arm", "double-cv-4"


def variances(gradients: Float[Tensor, "batches draws logits"]) -> Float[Tensor, "batches"]:
    """The variance over the draws, summed over the logits."""
    return gradients.var(1).sum(1)


def total_variance(gradients: Float[Tensor, "batches draws logits"]) -> tuple[float, float]:
    """The mean over these batches, and its standard error: that of the draws, since the batches are fixed."""
    batches, draws, _ = gradients.shape
    distances = (gradients - gradients.mean(1, keepdim=True)).square().sum(2) * draws / (draws - 1)
    return float(variances(gradients).mean()), float((distances.var(1).mean() / (batches * draws)).sqrt())


def bias(
    gradients: Mapping[str, Float[Tensor, "batches draws logits"]], direction: Float[Tensor, "logits"]
) -> dict[str, dict[str, float]]:
    """Each estimator's mean against the pooled mean of all the others, in standard errors of the difference.

    ``z`` is of the component along ``direction``, one N(0, 1) number if nothing is biased; ``rms`` and ``worst`` are over
    the logits one by one, whose mean square is 1 then. The pool weighs each estimator by its inverse variance.
    """
    values = {name: torch.cat([g @ direction[:, None], g], 2) for name, g in gradients.items()}
    means = {name: value.mean((0, 1)) for name, value in values.items()}
    errors = {name: value.var(1).mean(0) / value.shape[:2].numel() for name, value in values.items()}
    weights = {name: 1 / total_variance(g)[0] for name, g in gradients.items()}
    result = {}
    for name in gradients:
        others = [other for other in gradients if other != name]
        total = sum(weights[other] for other in others)
        pooled = torch.stack([weights[other] / total * means[other] for other in others]).sum(0)
        error = torch.stack([(weights[other] / total) ** 2 * errors[other] for other in others]).sum(0)
        known = errors[name] + error > 0  # a unit that no example activates has no gradient at all
        z = ((means[name] - pooled) / (errors[name] + error).sqrt())[known]
        result[name] = {"z": float(z[0]), "rms": float(z[1:].square().mean().sqrt()), "worst": float(z[1:].abs().max())}
    return result


def measure(settings: Settings, scale: Scale, keep: float, seed: int) -> dict[str, Any]:
    """One network: train it, draw from every estimator, and compare what came out."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    data = load(settings, generator)
    model = trained(settings, keep, scale, data, generator)
    with lbdrop.masks.deterministic(model), torch.no_grad():
        accuracy = float((model(data.test_x).argmax(1) == data.test_y).float().mean())
        loss = float(F.cross_entropy(model(data.x), data.y))
    rows = torch.randperm(len(data.y), generator=generator).split(settings.batch)[: settings.batches]
    batches = [(data.x[each], data.y[each]) for each in rows]
    steppers = {
        name: Stepper(model, settings.train, name, seed=1000 * (seed + 1) + index)
        for index, name in enumerate(settings.estimators)
    }
    turns = random.Random(seed)
    # A direction near the gradient's that knows nothing of the draws whose bias is looked for along it.
    before = take_turns(steppers, batches, settings.warm_up, turns)[DEFAULT]
    direction = F.normalize(before.mean((0, 1)), dim=0)
    gradients = take_turns(steppers, batches, settings.draws, turns)
    return {
        "scale": scale, "keep": keep, "seed": seed, "train_loss": loss, "test_accuracy": accuracy,
        "estimators": compared(steppers, gradients, direction),
    }  # fmt: skip


def compared(
    steppers: Mapping[str, Stepper], gradients: Gradients, direction: Float[Tensor, "logits"]
) -> dict[str, dict[str, Any]]:
    """What each estimator's steps came to, beside ARM's."""
    spread = {name: total_variance(g) for name, g in gradients.items()}
    biases = bias(gradients, direction)
    arm, (arm_variance, arm_error) = steppers[BASELINE], spread[BASELINE]
    result = {}
    for name, stepper in steppers.items():
        variance, error = spread[name]
        ratio, uncertain = variance / arm_variance, math.hypot(error / variance, arm_error / arm_variance)
        masks, arm_masks = (estimators.get(each).masks for each in (name, BASELINE))
        # Round by round: a neighbour on the same machine slows both of a pair, not one of them.
        slower = statistics.median(t / t_arm for t, t_arm in zip(stepper.seconds, arm.seconds, strict=True))
        result[name] = {
            "masks": masks,
            "variance": variance,
            "variance_standard_error": error,
            "relative_per_call": ratio,
            "relative_per_call_standard_error": 0.0 if name == BASELINE else ratio * uncertain,
            "relative_equal_evaluations": (variance * masks) / (arm_variance * arm_masks),
            "step_ms": 1e3 * statistics.median(stepper.seconds),
            "time_relative": slower,
            "merit": ratio * slower,
            "relative_per_call_by_batch": (variances(gradients[name]) / variances(gradients[BASELINE])).tolist(),
            "bias": biases[name],
        }
    return result
