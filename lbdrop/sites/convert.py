"""Turn every dropout of an existing model into a learned one, or insert new ones behind named modules."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from lbdrop._torch import children_of
from lbdrop.dropout import LearnableDropout, NoiseLayer, Scale, noise_layers
from lbdrop.errors import DropoutError
from lbdrop.rivals import ConcreteDropout, FixedDropout, GaussianDropout, RegularDropout
from lbdrop.sites import huggingface, lora
from lbdrop.sites.attention import LearnableAttention
from lbdrop.sites.recurrent import LearnableRecurrent
from lbdrop.sites.watch import REPAIR, functional_sites, report_unreachable

__all__ = ["Inserted", "Per", "Scheme", "convert", "replace_modules"]

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

PLAIN = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
ALPHA = (nn.AlphaDropout, nn.FeatureAlphaDropout)


class Inserted(nn.Sequential):
    """A module with a dropout put behind it; :func:`lbdrop.bake` takes it apart again."""


@dataclass(frozen=True)
class _Site:
    """A place where a model draws a mask: its present rate, and how to make the learned dropout for it."""

    name: str
    rate: float
    swap: Callable[["_Maker"], nn.Module]
    reads: nn.Module | None = None
    """The module whose input shows how many units there are; ``None`` where that is known without a pass."""


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
        model: any module. Reaches ``nn.Dropout``, ``Dropout1d/2d/3d``, ``AlphaDropout``, and the dropout inside
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
    if scheme not in SCHEMES:
        raise DropoutError(f"scheme: want one of {', '.join(SCHEMES)}, got {scheme!r}")
    if per not in ("unit", "layer", "model"):
        raise DropoutError(f"per: want 'unit', 'layer' or 'model', got {per!r}")
    if rate is not None and not 0 < rate < 1:
        raise DropoutError(f"rate: want a number strictly between 0 and 1, got {rate}")
    if rank_gates is not None and (scheme != "learned" or rank_gates < 0):
        raise DropoutError(f"rank_gates: want a cost of 0 or more, and scheme='learned', got {rank_gates}, {scheme!r}")
    if any(True for m in model.modules() if isinstance(m, NoiseLayer)):
        raise DropoutError(
            f"model: want one without learned dropouts, got {type(model).__name__} with some; convert a model once"
        )
    attention = huggingface.attention_modules(model)
    in_attention = {f"{site.name}.{site.attribute}" for site in attention}
    sites, idle = _sites(model, rate, in_attention)
    sites += _insertions(model, after)
    sites += _gates(model, rank_gates) if rank_gates is not None else []
    unreachable = _unreachable(model) + [s for s in functional_sites(model) if not huggingface.reaches(s, attention)]
    if unreachable:
        report_unreachable(
            f"{type(model).__name__} has dropout that cannot be reached: {unreachable}", REPAIR, unreached
        )
    if not sites and not attention:
        hint = f"; those at {idle} have rate 0, pass rate=0.5 to switch them on" if idle else ""
        first = next((n for n, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)), "fc1")
        raise DropoutError(
            f"model: want dropout to convert, got no dropout in {type(model).__name__}; pass after=[{first!r}] to choose a"
            f" place{hint}"
        )
    units = _count_units(model, sites, example) if per == "unit" else {}
    maker = _Maker(SCHEMES[scheme], per, scale, rate, units)
    new = {site.name: site.swap(maker.at(site)) for site in sites}
    old = {site.name: model.get_submodule(site.name) for site in sites}
    model = replace_modules(model, new)
    huggingface.route_attention(model, attention, maker.at)
    try:
        _share(model, share)
    except DropoutError:
        huggingface.unroute_attention(model)
        replace_modules(model, old)
        raise
    if verbose:
        _print_summary(model, idle)
    return model


class _Maker:
    """Makes learned dropouts of one granularity."""

    def __init__(self, kind: type[NoiseLayer], per: Per, scale: Scale, rate: float | None, units: dict[str, int]):
        self.kind, self.per, self.scale, self.rate, self.units = kind, per, scale, rate, units
        self.shared: nn.Parameter | None = None
        self.site: Any = None

    def at(self, site: Any) -> "_Maker":
        self.site = site
        return self

    def __call__(self, units: int | None = None, **settings: Any) -> NoiseLayer:
        rate = self.rate if self.rate is not None else self.site.rate
        count = (units or self.units.get(self.site.name)) if self.per == "unit" else None
        settings = {"scale": self.scale} | settings
        layer = self.kind(count, rate, logit=self.shared, **settings)
        if self.per == "model" and isinstance(layer.logit, nn.Parameter):
            self.shared = layer.logit
        return layer


# ------------------------------------------------------------------------------------------------- finding the sites


def _sites(model: nn.Module, rate: float | None, in_attention: set[str]) -> tuple[list[_Site], list[str]]:
    """The dropouts to replace, and the names of those that are switched off by a rate of 0."""
    sites: list[_Site] = []
    idle: list[str] = []
    sequence_first = _sequence_first(model)
    adapters = lora.dropouts(model)
    for name, module in model.named_modules():
        site: _Site | None = None
        if name in in_attention or not adapters.get(name, True) or _has_own_forward(module):
            continue
        if isinstance(module, PLAIN) or name in adapters:
            site = _plain_site(name, module, batch_dim=1 if name in sequence_first else 0)
        elif isinstance(module, nn.MultiheadAttention):
            site = _attention_site(name, module)
        elif isinstance(module, nn.RNNBase) and module.num_layers > 1:
            site = _recurrent_site(name, module)
        if site is None:
            continue
        if not site.rate and rate is None:
            idle.append(name)
            if not (isinstance(module, nn.MultiheadAttention) and _in_encoder_layer(model, name)):
                continue
            # It draws no mask, but as it is, the transformer layer would take its fused path past all other dropouts.
            site = _Site(name, 0.0, lambda make, m=module: LearnableAttention.of(m, None))
        elif site.rate >= 1 and rate is None:
            raise DropoutError(
                f"{name}: want a rate below 1, got {site.rate}, which keeps nothing; pass rate=0.5 to start from another"
            )
        sites.append(site)
    return sites, idle


def _has_own_forward(module: nn.Module) -> bool:
    """Whether a subclass of a torch layer has another forward: replacing it would change the model."""
    for base in (*PLAIN, nn.MultiheadAttention, nn.LSTM, nn.GRU, nn.RNN):
        if isinstance(module, base):
            return type(module).forward is not base.forward
    return False


def _plain_site(name: str, module: nn.Module, batch_dim: int) -> _Site:
    settings: dict[str, Any] = {"channels": isinstance(module, CHANNELS), "batch_dim": batch_dim}
    if isinstance(module, ALPHA):
        settings["scale"] = "alpha"

    def swap(make: _Maker) -> nn.Module:
        dims = make.units.get(f"{name}/dims", 0)
        # nn.Dropout on a convolutional map: draws per element, but a unit is a channel.
        unit_dim = 1 if dims == 4 and not settings["channels"] else None
        return make(unit_dim=unit_dim, **settings)

    return _Site(name, float(getattr(module, "p", 0.0)), swap, reads=module)


def _attention_site(name: str, module: nn.MultiheadAttention) -> _Site:
    def swap(make: _Maker) -> nn.Module:
        return LearnableAttention.of(module, make(module.num_heads, unit_dim=1))

    return _Site(name, float(module.dropout), swap)


def _recurrent_site(name: str, module: nn.RNNBase) -> _Site:
    width = (module.proj_size or module.hidden_size) * (2 if module.bidirectional else 1)

    def swap(make: _Maker) -> nn.Module:
        batch_dim = 0 if module.batch_first else 1
        return LearnableRecurrent.of(module, [make(width, batch_dim=batch_dim) for _ in range(module.num_layers - 1)])

    return _Site(name, float(module.dropout), swap)


def _insertions(model: nn.Module, after: Sequence[str]) -> list[_Site]:
    names = dict(model.named_modules())
    unknown = [name for name in after if name not in names or not name]
    if unknown:
        raise DropoutError(f"after: want names of modules, got {unknown}; there are {[n for n in names if n][:20]}")

    def swap(make: _Maker, module: nn.Module) -> nn.Module:
        if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
            raise DropoutError(f"after: want a module that returns one tensor, got {type(module).__name__}; wrap it")
        width = getattr(module, "out_features", None) or getattr(module, "out_channels", None)
        if make.per == "unit" and not width:
            raise DropoutError(f"after: want a layer with out_features or out_channels for per='unit', got {module}")
        channels = hasattr(module, "out_channels")
        return Inserted(module, make(width, channels=channels))

    return [_Site(name, 0.5, lambda make, m=names[name]: swap(make, m)) for name in after]


def _gates(model: nn.Module, cost: float) -> list[_Site]:
    found = lora.rank_projections(model)
    return [
        _Site(name, lora.START_RATE, lambda make, m=down: lora.GatedRanks.of(m, cost)) for name, down in found.items()
    ]


def _sequence_first(model: nn.Module) -> set[str]:
    """Dropouts that get (sequence, batch, units), because their transformer layer is not ``batch_first``."""
    found = set()
    for name, module in model.named_modules():
        if (
            isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer)
            and not module.self_attn.batch_first
        ):
            found |= {f"{name}.{child}" if name else child for child, _ in module.named_children()}
    return found


def _in_encoder_layer(model: nn.Module, name: str) -> bool:
    return isinstance(model.get_submodule(name.rpartition(".")[0]), nn.TransformerEncoderLayer)


def _unreachable(model: nn.Module) -> list[str]:
    """Modules that look like a dropout but are of no kind that we replace, such as DropPath, or have another forward."""
    found = []
    for name, module in model.named_modules():
        rate = next((getattr(module, key) for key in ("p", "drop_prob", "dropout") if hasattr(module, key)), 1.0)
        active = not isinstance(rate, int | float) or rate > 0
        kind = type(module).__name__.lower()
        unknown = ("drop" in kind or "stochasticdepth" in kind) and not isinstance(module, PLAIN)
        if active and (_has_own_forward(module) or (unknown and not list(module.children()))):
            found.append(f"{name} ({type(module).__name__})")
    return found


# -------------------------------------------------------------------------------------------------- counting, swapping


def _count_units(model: nn.Module, sites: list[_Site], example: Any) -> dict[str, int]:
    readers = {site.reads: site for site in sites if site.reads is not None}
    if not readers:
        return {}
    if example is None:
        raise DropoutError(
            "example: want one batch of inputs, which shows how many units reach each dropout for per='unit', got none; pass"
            " example=x"
        )
    seen: dict[str, int] = {}

    def count_units_of(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x, site = inputs[0], readers[module]
        on_map = isinstance(module, CHANNELS) or x.dim() == 4
        count = x.shape[1 if on_map else -1]
        if seen.setdefault(site.name, count) != count:
            raise DropoutError(
                f"{site.name}: want one number of units, got {seen[site.name]} and {count}; give each use its own dropout, or"
                " choose per='layer'"
            )
        seen[f"{site.name}/dims"] = x.dim()

    hooks = [module.register_forward_pre_hook(count_units_of) for module in readers]
    training = model.training
    try:
        with torch.no_grad(), torch.random.fork_rng():
            model.eval()  # running statistics must not change
            model(**example) if isinstance(example, dict) else model(example)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    missing = [site.name for site in readers.values() if site.name not in seen]
    if missing:
        raise DropoutError(
            f"example: want one that reaches every dropout, got one that misses {missing}, whose numbers of units are unknown;"
            " pass another, or choose per='layer'"
        )
    return seen


def replace_modules(model: Any, new: Mapping[str, nn.Module]) -> Any:
    """Replace modules by name; a module that is in several places is replaced in all of them."""
    replacements: dict[int, nn.Module] = {}
    for name, module in new.items():
        original = model.get_submodule(name)
        module.train(original.training)
        with suppress(StopIteration):
            module.to(next(model.parameters()).device)
        replacements[id(original)] = module
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


def _print_summary(model: nn.Module, idle: list[str]) -> None:
    from rich.console import Console  # here: import lbdrop need not wait for it

    found = {name: m for name, m in model.named_modules() if isinstance(m, NoiseLayer)}
    each = [f"{name} ({f'{m.units} units, ' if m.units else ''}rate {m.p:.2f})" for name, m in found.items()]
    shown = ", ".join(each[:12]) + (f", … {len(each) - 12} more" if len(each) > 12 else "")
    left = f"; left alone, rate 0: {', '.join(idle[:12])}" if idle else ""
    plural = "s" if len(each) > 1 else ""
    kind = "learned" if any(m.learns for m in found.values()) else "at a fixed rate"
    Console(highlight=False, soft_wrap=True).print(
        f"lbdrop: {len(each)} dropout{plural} {kind}: {shown}{left}", markup=False
    )
