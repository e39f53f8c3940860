"""The modules of a model that drop, each as a site: its present rate, and how to make the learned dropout for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lbdrop.dropout import NoiseLayer, Scale
from lbdrop.errors import DropoutError
from lbdrop.sites import lora
from lbdrop.sites.attention import LearnableAttention
from lbdrop.sites.effects import Effect, effect_of
from lbdrop.sites.recurrent import LearnableRecurrent

__all__ = ["Inserted", "Maker", "Site", "count_units", "gates", "insertions", "module_sites"]

PLAIN = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
ALPHA = (nn.AlphaDropout, nn.FeatureAlphaDropout)


class Inserted(nn.Sequential):
    """A module with a dropout put behind it; :func:`lbdrop.bake` takes it apart again."""


@dataclass(frozen=True)
class Site:
    """A place where a model draws a mask: its present rate, and how to make the learned dropout for it."""

    name: str
    rate: float
    swap: Callable[["Maker"], nn.Module]
    reads: nn.Module | None = None
    """The module whose input shows how many units there are; ``None`` where that is known without a pass."""


class Maker:
    """Makes learned dropouts of one granularity."""

    def __init__(self, kind: type[NoiseLayer], per: str, scale: Scale, rate: float | None, units: dict[str, int]):
        self.kind, self.per, self.scale, self.rate, self.units = kind, per, scale, rate, units
        self.shared: nn.Parameter | None = None
        self.site: Any = None

    def at(self, site: Any) -> "Maker":
        self.site = site
        return self

    def __call__(self, units: int | None = None, **settings: Any) -> NoiseLayer:
        rate = self.rate if self.rate is not None else self.site.rate
        count = (units or self.units.get(self.site.name)) if self.per == "unit" else None
        settings = {"scale": self.scale} | settings
        layer = self.kind(count, None if self.shared is not None else rate, logit=self.shared, **settings)
        if self.per == "model" and isinstance(layer.logit, nn.Parameter):
            self.shared = layer.logit
        return layer


# ------------------------------------------------------------------------------------------------- finding the sites


def module_sites(model: nn.Module, rate: float | None) -> tuple[list[Site], list[str], dict[str, str]]:
    """The dropouts to replace, the names of those that are switched off by a rate of 0, and what drops in another way.

    The last are modules such as DropBlock, or that look so and cannot be tried, by name.
    """
    sites: list[Site] = []
    idle: list[str] = []
    strange: dict[str, str] = {}
    sequence_first = _sequence_first(model)
    adapters = lora.dropouts(model)
    for name, module in model.named_modules():
        site: Site | None = None
        if not adapters.get(name, True):
            continue
        if isinstance(module, torch.jit.ScriptModule):
            if any(word in str(getattr(module, "inlined_graph", "")) for word in ("dropout", "bernoulli")):
                strange[name] = f"{name or 'the model'} (compiled by torch.jit: convert it before)"
            continue
        if (isinstance(module, PLAIN) and not _has_own_forward(module)) or name in adapters:
            site = _plain_site(name, module, batch_dim=1 if name in sequence_first else 0)
        elif (effect := effect_of(module)) is not None:
            site = _effect_site(name, module, effect)
            if effect.drops == "unknown":
                strange[name] = f"{name} ({type(module).__name__})"
        elif _looks_active(module):
            strange[name] = f"{name} ({type(module).__name__})"
        elif _has_own_forward(module):
            continue
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
            site = Site(name, 0.0, lambda make, m=module: LearnableAttention.of(m, None))
        elif site.rate >= 1 and rate is None:
            raise DropoutError(
                f"{name}: want a rate below 1, got {site.rate}, which keeps nothing; pass rate=0.5 to start from another"
            )
        sites.append(site)
    return sites, idle, strange


def _has_own_forward(module: nn.Module) -> bool:
    """Whether a subclass of a torch layer has another forward: replacing it would change the model."""
    for base in (*PLAIN, nn.MultiheadAttention, nn.LSTM, nn.GRU, nn.RNN):
        if isinstance(module, base):
            return type(module).forward is not base.forward
    return False


def _plain_site(name: str, module: nn.Module, batch_dim: int) -> Site:
    settings: dict[str, Any] = {"channels": isinstance(module, CHANNELS), "batch_dim": batch_dim}
    if isinstance(module, ALPHA):
        settings["scale"] = "alpha"

    def swap(make: Maker) -> nn.Module:
        dims = make.units.get(f"{name}/dims", 0)
        # nn.Dropout on a convolutional map: draws per element, but a unit is a channel.
        unit_dim = 1 if dims == 4 and not settings["channels"] else None
        return make(unit_dim=unit_dim, **settings)

    return Site(name, float(getattr(module, "p", 0.0)), swap, reads=module)


def _effect_site(name: str, module: nn.Module, effect: Effect) -> Site | None:
    """A dropout that somebody wrote, such as DropPath: known by what it does."""
    if effect.drops == "unknown" or not (effect.rate or _is_called_dropout(module)):
        return None  # an identity is no dropout that is switched off
    settings = {} if effect.drops == "elements" else {effect.drops: True}
    # A whole example has no units of its own.
    reads = None if effect.drops == "examples" else module
    return Site(name, effect.rate, lambda make: make(**settings), reads=reads)


def _is_called_dropout(module: nn.Module) -> bool:
    kind = type(module).__name__.lower()
    return "drop" in kind or "stochasticdepth" in kind


def _attention_site(name: str, module: nn.MultiheadAttention) -> Site:
    def swap(make: Maker) -> nn.Module:
        return LearnableAttention.of(module, make(module.num_heads, unit_dim=1))

    return Site(name, float(module.dropout), swap)


def _recurrent_site(name: str, module: nn.RNNBase) -> Site:
    width = (module.proj_size or module.hidden_size) * (2 if module.bidirectional else 1)

    def swap(make: Maker) -> nn.Module:
        batch_dim = 0 if module.batch_first else 1
        return LearnableRecurrent.of(module, [make(width, batch_dim=batch_dim) for _ in range(module.num_layers - 1)])

    return Site(name, float(module.dropout), swap)


def insertions(model: nn.Module, after: Sequence[str]) -> list[Site]:
    names = dict(model.named_modules())
    unknown = [name for name in after if name not in names or not name]
    if unknown:
        raise DropoutError(f"after: want names of modules, got {unknown}; there are {[n for n in names if n][:20]}")

    def swap(make: Maker, module: nn.Module) -> nn.Module:
        if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
            raise DropoutError(f"after: want a module that returns one tensor, got {type(module).__name__}; wrap it")
        width = getattr(module, "out_features", None) or getattr(module, "out_channels", None)
        if make.per == "unit" and not width:
            raise DropoutError(f"after: want a layer with out_features or out_channels for per='unit', got {module}")
        channels = hasattr(module, "out_channels")
        return Inserted(module, make(width, channels=channels))

    return [Site(name, 0.5, lambda make, m=names[name]: swap(make, m)) for name in after]


def gates(model: nn.Module, cost: float) -> list[Site]:
    found = lora.rank_projections(model)
    return [
        Site(name, lora.START_RATE, lambda make, m=down: lora.GatedRanks.of(m, cost)) for name, down in found.items()
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


def _looks_active(module: nn.Module) -> bool:
    """Whether a module that cannot be tried has the looks of a dropout, and a rate."""
    rate = next((getattr(module, key) for key in ("p", "drop_prob", "dropout") if hasattr(module, key)), 1.0)
    looks = _has_own_forward(module) or (_is_called_dropout(module) and not list(module.children()))
    return looks and (not isinstance(rate, int | float) or rate > 0)


# -------------------------------------------------------------------------------------------------- counting, swapping


def count_units(sites: list[Site], shapes: Mapping[nn.Module, set[torch.Size]]) -> dict[str, int]:
    """How many units reach each dropout, by the shapes of the inputs that modules had."""
    units: dict[str, int] = {}
    readers = [(site, site.reads) for site in sites if site.reads is not None]
    if missing := [site.name for site, reads in readers if reads not in shapes]:
        raise DropoutError(
            f"example: want one batch of inputs, which shows how many units reach each dropout for per='unit', got none that"
            f" shows it for {missing}; pass example=x, or choose per='layer'"
        )
    for site, reads in readers:
        seen = shapes[reads]
        dims = max(map(len, seen))
        on_map = isinstance(reads, CHANNELS) or dims == 4
        counts = sorted({shape[1 if on_map else -1] for shape in seen}, reverse=True)
        if len(counts) > 1:
            raise DropoutError(
                f"{site.name}: want one number of units, got {' and '.join(map(str, counts))}; give each use its own dropout,"
                " or choose per='layer'"
            )
        units |= {site.name: counts[0], f"{site.name}/dims": dims}
    return units
