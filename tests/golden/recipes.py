"""Recipes of the library: rules, estimators, rivals, predictions and runs that are resumed."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import lbdrop
from lbdrop import Balanced, Bound, Objective

from . import small
from .records import Numbers

__all__ = ["RECIPES"]

FEATURES, MAP, SERIES, TOKENS = (6,), (2, 6, 6), (5, 4), (4, 8)


# ---------------------------------------------------------------------------------------------------------- the bound


def bound_dense() -> Numbers:
    data, found = small.examples(64, *FEATURES), {}
    for scale, per in (
        ("inverted", "unit"),
        ("inverted", "layer"),
        ("none", "unit"),
        ("none", "model"),
        ("alpha", "unit"),
    ):
        torch.manual_seed(0)
        model = small.convert(small.selu() if scale == "alpha" else small.mlp(), data, scale=scale, per=per)
        found |= small.named(
            f"{scale} {per}", small.trained(model, Objective(model, examples=64), data, steps=20, keep=4)
        )
    torch.manual_seed(0)
    model = small.convert(small.mlp(), data).double()
    rule = Bound(model, 64, s=0.5, prior_keep=0.8, weight=0.3)
    double = data[0].double(), data[1]
    return found | small.named("double", small.trained(model, Objective(model, rule), double, steps=20, keep=4))


def bound_channels() -> Numbers:
    data, found = small.examples(48, *MAP), {}
    for per in ("unit", "layer"):
        torch.manual_seed(0)
        model = small.convert(small.conv(), data, per=per)
        found |= small.named(per, small.trained(model, Objective(model, examples=48), data, steps=15, keep=3))
    return found


def bound_recurrent() -> Numbers:
    data = small.examples(48, *SERIES)
    model = small.convert(small.Recurrent(), data)
    return small.trained(model, Objective(model, examples=48), data, steps=15, keep=5)


def bound_transformer() -> Numbers:
    data, found = small.examples(48, *TOKENS), {}
    for per in ("layer", "unit"):
        torch.manual_seed(0)
        model = small.convert(small.Transformer(), data, per=per)
        found |= small.named(per, small.trained(model, Objective(model, examples=48), data, steps=10, keep=2))
    return found


# ----------------------------------------------------------------------------------------------- rates from held-out data


def balanced_dense() -> Numbers:
    data, held_out, found = small.examples(64, *FEATURES), small.cut(small.examples(32, *FEATURES, seed=1), 16), {}
    for per, count in (("layer", None), ("layer", 64), ("unit", 64), ("model", None)):
        torch.manual_seed(0)
        model = small.convert(small.mlp(), data, per=per)
        objective = Objective(model, held_out=held_out, steps=100, examples=count, masks=2 if per == "model" else 1)
        name = f"{per}, {'kept out' if count is None else 'released'}"
        found |= small.named(name, small.trained(model, objective, data, steps=100, keep=10))
    return found


def balanced_start() -> Numbers:
    data, held_out = small.examples(64, *FEATURES), [small.examples(16, *FEATURES, seed=1)]
    model = small.convert(small.mlp(), data)
    generator = torch.Generator().manual_seed(3)
    rule = Balanced(model, held_out, steps=80, start=0.3, share=0.6, every=2, masks=2, generator=generator)
    return small.trained(model, Objective(model, rule), data, steps=80, keep=5)


def balanced_shapes() -> Numbers:
    found = {}
    makers: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
        "channels": (small.conv, MAP, "unit"),
        "recurrent": (small.Recurrent, SERIES, "layer"),
        "transformer": (small.Transformer, TOKENS, "layer"),
        "batch norm": (small.normed, FEATURES, "unit"),
    }
    for name, (make, shape, per) in makers.items():
        torch.manual_seed(0)
        data, held_out = small.examples(128, *shape), small.cut(small.examples(48, *shape, seed=1), 16)
        model = small.convert(make(), data, per=per)
        objective = Objective(model, held_out=held_out, steps=60, examples=128)
        found |= small.named(name, small.trained(model, objective, data, steps=60, keep=6))
    return found


def self_tuning() -> Numbers:
    from experiments.rival_rules.self_tuning import SelfTuning

    data, held_out, found = small.examples(64, *FEATURES), small.cut(small.examples(32, *FEATURES, seed=1), 16), {}
    settings: dict[str, dict[str, Any]] = {
        "layer": {},
        "unit": {"examples": 64},
        "start": {"start": 0.3, "plain": 0.0, "masks": 2, "every": 2},
    }
    for name, options in settings.items():
        torch.manual_seed(0)
        model = small.convert(small.mlp(), data, per="unit" if name == "unit" else "layer")
        rule = SelfTuning(model, held_out, steps=80, **options)
        found |= small.named(name, small.trained(model, Objective(model, rule), data, steps=80, keep=8))
    return found


def one_step() -> Numbers:
    from experiments.rival_rules.one_step import OneStep

    data, held_out = small.examples(64, *FEATURES), small.cut(small.examples(32, *FEATURES, seed=1), 16)
    found = {}
    for per in ("layer", "unit"):
        torch.manual_seed(0)
        model = small.convert(small.mlp(), data, per=per)
        rule = OneStep(model, held_out, generator=torch.Generator().manual_seed(2))
        optimizer = small.adam(model)
        rule.follow(optimizer)
        steps = small.train(rule, optimizer, small.cut(data, 16), range(20))
        found |= small.named(per, {"losses": steps, **small.state(model)})
    return found


def mask_prior() -> Numbers:
    from experiments.rival_rules.mask_prior import MaskPrior

    data, found = small.examples(64, *FEATURES), {}
    for per in ("layer", "unit"):
        torch.manual_seed(0)
        model = small.convert(small.mlp(), data, per=per)
        objective = Objective(model, MaskPrior(0.1))
        found |= small.named(per, small.trained(model, objective, data, steps=20, keep=4))
    return found


# ------------------------------------------------------------------------------------------------- estimators and rivals


ESTIMATORS = ("arm", "disarm", "rloo", "rloo-4", "arms-4", "double-cv", "double-cv-4")


def estimators() -> Numbers:
    data, found = small.examples(48, *FEATURES), {}
    for name in ESTIMATORS:
        torch.manual_seed(0)
        model = small.convert(small.mlp(), data, per="unit")
        generator = torch.Generator().manual_seed(1)
        objective = Objective(model, examples=48, estimator=name, generator=generator)
        found |= small.named(name, small.trained(model, objective, data, steps=8, keep=2))
    return found


def estimators_coupled() -> Numbers:
    """BatchNorm couples the examples of a batch: each estimator takes the difference of batch totals."""
    data, found = small.examples(48, *FEATURES), {}
    for name in ESTIMATORS:
        torch.manual_seed(0)
        model = small.convert(small.normed(), data, per="unit")
        objective = Objective(model, examples=48, estimator=name)
        found |= small.named(name, small.trained(model, objective, data, steps=8, keep=2))
    torch.manual_seed(0)
    model = small.convert(small.mlp(), data)
    objective = Objective(model, examples=48, coupled=True)
    return found | small.named("told", small.trained(model, objective, data, steps=8, keep=2))


def rivals() -> Numbers:
    data, found = small.examples(48, *FEATURES), {}
    for scheme in ("concrete", "gaussian", "mc", "regular"):
        for per in ("layer", "unit"):
            torch.manual_seed(0)
            model = small.convert(small.mlp(), data, scheme=scheme, per=per)
            objective = Objective(model, examples=48, masks=2 if per == "unit" else 1)
            numbers = small.trained(model, objective, data, steps=15, keep=5)
            found |= small.named(f"{scheme} {per}", numbers | _predicted(model, data))
    return found


def plain_calls() -> Numbers:
    """A model called outside an objective: masks in training mode, the deterministic pass in eval mode."""
    x, _ = data = small.examples(4, *FEATURES)
    found: Numbers = {}
    for scheme, scale in (
        ("learned", "inverted"),
        ("learned", "none"),
        ("concrete", "inverted"),
        ("gaussian", "inverted"),
    ):
        torch.manual_seed(0)
        model = small.convert(small.mlp(), data, scheme=scheme, scale=scale, per="unit")
        found[f"{scheme} {scale}, training"] = model(x).flatten().tolist()
        found[f"{scheme} {scale}, eval"] = model.eval()(x).flatten().tolist()
    return found


# ------------------------------------------------------------------------------------------- predictions, runs resumed


def _predicted(model: nn.Module, data: small.Batch) -> Numbers:
    p = lbdrop.predict(model, data[0][:6], samples=7)
    assert p.entropy is not None
    assert p.mutual_information is not None
    parts = {"mean": p.mean, "variance": p.variance, "entropy": p.entropy, "information": p.mutual_information}
    return {name: values.flatten().tolist() for name, values in parts.items()}


def predictions() -> Numbers:
    """By lanes where masks can share a pass, by replays where they cannot; and of the model without our layers."""
    found = {}
    makers: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
        "dense": (small.mlp, FEATURES),
        "batch norm": (small.normed, FEATURES),
        "channels": (small.conv, MAP),
        "recurrent": (small.Recurrent, SERIES),
        "transformer": (small.Transformer, TOKENS),
    }
    for name, (make, shape) in makers.items():
        for scale in ("inverted", "none"):
            if scale == "none" and name not in ("dense", "channels"):
                continue
            torch.manual_seed(0)
            data = small.examples(16, *shape)
            model = small.convert(make(), data, per="unit", scale=scale)
            small.train(Objective(model, examples=16), small.adam(model), [data], range(3))
            baked = lbdrop.bake(model)(data[0][:6]).flatten().tolist()
            found |= small.named(f"{name} {scale}", _predicted(model, data) | {"baked": baked})
    torch.manual_seed(0)
    data = small.examples(32, *FEATURES)
    model = small.convert(small.mlp(), data)
    regression = lbdrop.predict(model, small.cut(data, 10), samples=5, kind="regression", memory=20_000, progress=False)
    return found | {"in parts": [*small.sums_of(regression.mean), *small.sums_of(regression.variance)]}


def pruned() -> Numbers:
    data = small.examples(32, *FEATURES)
    model = small.convert(small.mlp(), data, per="unit")
    with torch.no_grad():
        for layer in (model.get_submodule("2"), model.get_submodule("5")):
            layer.logit.copy_(torch.linspace(-6.0, 6.0, layer.logit.numel()))  # pyright: ignore
    cut = lbdrop.prune(model, 0.9)
    sums = [s for p in cut.parameters() for s in small.sums_of(p)]
    return {"outputs": cut(data[0][:6]).flatten().tolist(), "weights": sums}


def resumed() -> Numbers:
    """Stopped at half, loaded into a new model and objective, and trained on."""
    from experiments.rival_rules.self_tuning import SelfTuning

    data, held_out = small.examples(64, *FEATURES), [small.examples(16, *FEATURES, seed=1)]
    rules: dict[str, Callable[[nn.Module], Any]] = {
        "bound": lambda model: Bound(model, 64),
        "balanced": lambda model: Balanced(model, held_out, steps=80, examples=64, share=0.6),
        "balanced, frozen": lambda model: Balanced(model, held_out, steps=80, share=0.25),
        "self-tuning": lambda model: SelfTuning(model, held_out, steps=80),
    }

    def made(rule: Callable[[nn.Module], Any]) -> tuple[nn.Module, Objective, torch.optim.Optimizer]:
        model = small.convert(small.mlp(), data)
        objective = Objective(model, rule(model))
        return model, objective, small.adam(model)

    found = {}
    for name, rule in rules.items():
        torch.manual_seed(0)
        model, objective, optimizer = made(rule)
        begun = small.train(objective, optimizer, small.cut(data, 16), range(40))
        kept = copy.deepcopy(
            [each.state_dict() for each in (model, objective, optimizer) if hasattr(each, "state_dict")]
        )
        torch.manual_seed(1)  # another model, until it is loaded
        model, objective, optimizer = made(rule)
        for each, its in zip((e for e in (model, objective, optimizer) if hasattr(e, "state_dict")), kept, strict=True):
            each.load_state_dict(its)  # pyright: ignore[reportAttributeAccessIssue]
        torch.manual_seed(2)
        rest = small.train(objective, optimizer, small.cut(data, 16), range(40, 80))
        found |= small.named(name, {"losses": [*begun[::5], *rest[::5]], **small.state(model)})
    return found


RECIPES: dict[str, Callable[[], Numbers]] = {
    "bound-dense": bound_dense,
    "bound-channels": bound_channels,
    "bound-recurrent": bound_recurrent,
    "bound-transformer": bound_transformer,
    "balanced-dense": balanced_dense,
    "balanced-start": balanced_start,
    "balanced-shapes": balanced_shapes,
    "self-tuning": self_tuning,
    "one-step": one_step,
    "mask-prior": mask_prior,
    "estimators": estimators,
    "estimators-coupled": estimators_coupled,
    "rivals": rivals,
    "plain-calls": plain_calls,
    "predictions": predictions,
    "pruned": pruned,
    "resumed": resumed,
}
