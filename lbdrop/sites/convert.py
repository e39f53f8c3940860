"""Turn every dropout of an existing model into a learned one, or insert new ones behind named modules."""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeVar

from torch import nn

from lbdrop._torch import children_of
from lbdrop.dropout import LearnableDropout, NoiseLayer, Scale, noise_layers
from lbdrop.errors import DropoutError, refuse
from lbdrop.masks import deterministic
from lbdrop.rivals import ConcreteDropout, FixedDropout, GaussianDropout, RegularDropout
from lbdrop.sites.draws import answer_draws, forget_draws
from lbdrop.sites.example import Run, random_draws, same_outputs, undisturbed
from lbdrop.sites.modules import Maker, count_units, gates, insertions, module_sites
from lbdrop.sites.skips import answer_skips, forget_skips
from lbdrop.sites.survey import Found, survey
from lbdrop.sites.watch import REPAIR, report_unreachable

__all__ = ["Per", "Scheme", "convert", "replace_modules"]

Per = Literal["unit", "layer", "model"]
Scheme = Literal["learned", "concrete", "gaussian", "mc", "regular"]
SCHEMES: dict[str, type[NoiseLayer]] = {
    "learned": LearnableDropout,
    "concrete": ConcreteDropout,
    "gaussian": GaussianDropout,
    "mc": FixedDropout,
    "regular": RegularDropout,
}
Model = TypeVar("Model", bound=nn.Module)


def convert(
    model: Model,
    *,
    scheme: Scheme = "learned",
    rate: float | None = None,
    per: Per = "layer",
    scale: Scale = "inverted",
    after: Sequence[str] = (),
    example: Any = None,
    share: Sequence[Sequence[str]] = (),
    rank_gates: float | None = None,
    unreached: str = "error",
    verbose: bool = True,
) -> Model:
    """Replace every dropout of ``model``, in place, and return it; an error leaves the model as it was.

    Args:
        model: any module. Reaches ``nn.Dropout``, ``Dropout1d/2d/3d``, ``AlphaDropout``, stochastic depth and other modules
            that drop elements, channels or examples, as their effect on ones shows, and the dropout inside
            ``nn.MultiheadAttention``, the transformer layers, ``nn.LSTM/GRU/RNN``, the attention of Hugging Face models and
            the LoRA adapters of ``peft`` that are in use.
        scheme: ``"learned"``, or a rival in the same places: ``"concrete"``, ``"gaussian"``, ``"mc"`` (fixed, on at
            test) or ``"regular"`` (fixed, off at test).
        rate: the drop rate to start from; by default each dropout's own.
        per: one rate per ``"unit"`` (channel, attention head), per ``"layer"``, or one for the ``"model"``.
        scale: what a mask does (see :class:`LearnableDropout`). ``"inverted"`` keeps the outputs of the trained model.
        after: names of modules to put a new dropout behind, beside those that are there.
        example: a batch to run once, which shows how many units reach each dropout; needed for ``per="unit"``.
        share: groups of names of dropouts that share one rate.
        rank_gates: also a learned gate for each rank of each LoRA adapter, at this cost: by how many nats a rank has to lower
            the loss summed over the training set (:mod:`lbdrop.sites.lora`). :func:`lbdrop.prune` cuts ranks that do not.
        unreached: ``"error"`` or ``"warn"``, about dropout in functions and layers that cannot be reached.
        verbose: say what was changed.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
        >>> _ = convert(net, per="unit", example=torch.zeros(1, 4))
        lbdrop: 1 dropout learned: 2 (8 units, rate 0.20)
    """
    wrong = {
        f"model: want one without learned dropouts, got {type(model).__name__} with some; convert a model once": any(
            isinstance(module, NoiseLayer) for module in model.modules()
        ),
        f"scheme: want one of {', '.join(SCHEMES)}, got {scheme!r}": scheme not in SCHEMES,
        f"per: want 'unit', 'layer' or 'model', got {per!r}": per not in ("unit", "layer", "model"),
        f"scale: want 'inverted', 'none' or 'alpha', got {scale!r}": scale not in ("inverted", "none", "alpha"),
        f"rate: want a number strictly between 0 and 1, got {rate}": rate is not None and not 0 < rate < 1,
        f"rank_gates: want a cost of 0 or more, and scheme='learned', got {rank_gates}, {scheme!r}": rank_gates
        is not None
        and (scheme != "learned" or rank_gates < 0),
        "share: want it with per='layer' or 'unit', got per='model', where all have one rate; leave it out": bool(share)
        and per == "model",
        f"unreached: want 'error' or 'warn', got {unreached!r}": unreached not in ("error", "warn"),
    }
    refuse(message for message, is_wrong in wrong.items() if is_wrong)
    sites, idle, strange = module_sites(model, rate)
    names = {module: name for name, module in model.named_modules()}
    draws: list[Found] = []
    dead: list[str] = []
    seen = survey(model, example)
    if seen is not None:
        dead = [site.name for site in sites if not seen.reaches(site.name, model.get_submodule(site.name))]
        sites = [site for site in sites if site.name not in dead]
        draws = seen.draws(names, {site.name for site in sites} | {*dead, *idle})
    if seen is not None and seen.draws_in_python:
        warnings.warn(
            f"{type(model).__name__} draws in training by Python's random or by numpy.random, as some models do to skip layers"
            " or to hide inputs; that stays as it is: only draws of torch can have a learned rate",
            stacklevel=2,
        )
    sites += insertions(model, after)
    sites += gates(model, rank_gates) if rank_gates is not None else []
    if unreachable := [what for name, what in strange.items() if name not in {site.module for site in draws}]:
        report_unreachable(
            f"{type(model).__name__} has dropout that cannot be reached: {unreachable}", REPAIR, unreached
        )
    if not (sites or draws or (seen and any(each.rate for each in seen.training.tosses))):
        hint = f"; those at {idle} have rate 0, pass rate=0.5 to switch them on" if idle else ""
        if seen is None:
            hint += "; if its dropout is in a function, pass example=x, a batch that it can be called with"
        first = next((n for n, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)), "fc1")
        raise DropoutError(
            f"model: want dropout to convert, got no dropout in {type(model).__name__}; pass after=[{first!r}] to choose a"
            f" place{hint}"
        )
    units = count_units(sites, {} if seen is None else seen.shapes) if per == "unit" else {}
    units |= {site.name: site.units for site in draws if site.units}
    maker = Maker(SCHEMES[scheme], per, scale, rate, units)
    new = {site.name: site.swap(maker.at(site)) for site in sites}
    originals = {id(new[site.name]): model.get_submodule(site.name) for site in sites}
    model = replace_modules(model, new)
    try:
        make = lambda site: maker.at(site)(**site.settings)  # noqa: E731
        answer_draws(model, draws, make)
        if seen is not None:
            answer_skips(model, seen.example.run, seen.training.tosses, names, make)
        _share(model, share)
        if seen is not None:
            same = not after and scale == "inverted" and rank_gates is None  # else the outputs are meant to change
            _check(model, seen.example.run, seen.output if same else None, unreached)
    except BaseException:
        forget_skips(model)
        forget_draws(model, checked=False)
        _put(model, originals)  # not by name: a module that was put behind another has changed the names inside of that
        raise
    if verbose:
        _print_summary(model, idle, dead)
    return model


def _in_eval(model: nn.Module, run: Run) -> Any:
    with undisturbed(model):
        model.eval()
        return run()


def _check(model: nn.Module, run: Run, before: Any, unreached: str) -> None:
    """After a conversion: the model computes what it did, and without its masks nothing in training is random."""
    with deterministic(model):
        output, left = random_draws(model, run)
    if left:
        what = f"{type(model).__name__} draws at random outside of its dropouts: {left[:6]}"
        repair = "if it is dropout, write it with F.dropout or switch it off in the model's configuration"
        report_unreachable(what, repair, unreached)
    # Training without masks is evaluation, unless a norm or the like tells them apart.
    if before is not None and not same_outputs(before, output) and not same_outputs(before, _in_eval(model, run)):
        raise DropoutError(
            f"{type(model).__name__}: want the same outputs in eval mode after a conversion, got others; a dropout was not what"
            " it looked like. Please report this model"
        )


def replace_modules(model: Any, new: Mapping[str, nn.Module]) -> Any:
    """Replace modules by name; a module that is in several places is replaced in all of them."""
    replacements: dict[int, nn.Module] = {}
    for name, module in new.items():
        original = model.get_submodule(name)
        inside = set(original.modules())
        for each in module.modules():
            if each not in inside:  # those of the model keep their modes
                each.training = original.training
        with suppress(StopIteration):
            module.to(next(model.parameters()).device)
        replacements[id(original)] = module
    return _put(model, replacements)


def _put(model: Any, replacements: Mapping[int, nn.Module]) -> Any:
    """Put modules in the places of others, which are given by ``id``."""
    for parent in list(model.modules()):
        children = children_of(parent)
        for child_name, child in children.items():
            if id(child) in replacements:
                children[child_name] = replacements[id(child)]
    return replacements.get(id(model), model)


def _share(model: nn.Module, groups: Sequence[Sequence[str]]) -> None:
    for group in groups:
        names = dict(model.named_modules())
        layers = [names.get(name) for name in group]
        strange = [n for n, layer in zip(group, layers, strict=True) if not isinstance(layer, NoiseLayer)]
        if strange:
            raise DropoutError(
                f"share: want names of converted dropouts, got {strange}; there are {list(noise_layers(model))}"
            )
        first = layers[0]
        for name, layer in zip(group, layers, strict=True):
            assert isinstance(layer, NoiseLayer)
            assert isinstance(first, NoiseLayer)
            if layer.logit.shape != first.logit.shape:
                raise DropoutError(
                    f"share: want equal numbers of units, got {layer.units} at {name!r} and {first.units} at {group[0]!r}"
                )
            layer.logit = first.logit


def _print_summary(model: nn.Module, idle: list[str], dead: list[str]) -> None:
    from rich.console import Console  # here: import lbdrop need not wait for it

    found = {name: m for name, m in model.named_modules() if isinstance(m, NoiseLayer)}
    each = [f"{name} ({f'{m.units} units, ' if m.units else ''}rate {m.p:.2f})" for name, m in found.items()]
    shown = ", ".join(each[:12]) + (f", … {len(each) - 12} more" if len(each) > 12 else "")
    left = f"; left alone, rate 0: {', '.join(idle[:12])}" if idle else ""
    left += f"; left alone, never called: {', '.join(dead[:12])}" if dead else ""
    plural = "s" if len(each) > 1 else ""
    kind = "learned" if any(m.learns for m in found.values()) else "at a fixed rate"
    Console(highlight=False, soft_wrap=True).print(
        f"lbdrop: {len(each)} dropout{plural} {kind}: {shown}{left}", markup=False
    )
