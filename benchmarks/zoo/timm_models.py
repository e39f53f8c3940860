"""A small model of each family that timm lists, with dropout, stochastic depth and the rest of its noise on."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch

from benchmarks.zoo.models import BATCH, RATE, Entry, Made, package, stub_torchvision

__all__ = ["timm_entries"]

SMALL = ("test_", "atto", "femto", "pico", "xxxs", "xxs", "nano", "xs", "xx_small", "tiny", "_t_", "x_small", "small", "_s",
         "10", "18", "b0", "a0", "_050", "_0", "_1", "lite", "mobile")  # fmt: skip
NOISE = (
    {"drop_rate": RATE, "drop_path_rate": RATE, "proj_drop_rate": RATE, "attn_drop_rate": RATE},
    {"drop_rate": RATE, "drop_path_rate": RATE, "proj_drop_rate": RATE},
    {"drop_rate": RATE, "drop_path_rate": RATE, "drop_block_rate": RATE},
    {"drop_rate": RATE, "drop_path_rate": RATE, "attn_drop_rate": RATE},
    {"drop_rate": RATE, "drop_path_rate": RATE},
    {"drop_rate": RATE},
    {"drop_path_rate": RATE},
)
SMALLER: tuple[dict[str, Any], ...] = (
    {"depths": (1, 1, 1, 1)}, {"layers": (1, 1, 1, 1)}, {"layers": (1, 1, 1, 1), "embed_dims": (32, 32, 64, 64)},
    {"depth": 2}, {"depth": 2, "embed_dim": 192, "num_heads": 3}, {"num_blocks": 2, "embed_dim": 96}, {"num_features": 64}, {},
)  # fmt: skip
"""Fewer and narrower layers, where a model takes it."""
SIDES = (64, 96, 128, 160, 224, 256, 299)
MAX_PARAMETERS = 40_000_000


def timm_entries() -> Iterator[Entry]:
    """One model of each family, by the first part of its name."""
    stub_torchvision()
    timm = package("timm")
    families: dict[str, list[str]] = defaultdict(list)
    for name in timm.list_models():
        families[name.removeprefix("test_").removeprefix("tf_").split("_")[0].rstrip("0123456789")].append(name)
    for family, names in families.items():
        names.sort(key=rank)
        yield Entry("timm", family, lambda names=names: make(names))


def rank(name: str) -> tuple[int, int, str]:
    return next((place for place, size in enumerate(SMALL) if size in name), len(SMALL)), len(name), name


def make(names: list[str]) -> Made:
    """The first of these that is not too large, at the smallest image that it takes."""
    problems = []
    for name in names[:4]:
        try:
            return small(name)
        except Exception as error:
            problems.append(f"{name}: {type(error).__name__}: {str(error)[:80]}")
    raise ValueError("; ".join(problems)[:300])


def small(name: str) -> Made:
    timm = package("timm")

    def created(**settings: Any) -> Any:
        for noise in (*NOISE, {}):
            with suppress(TypeError):
                return timm.create_model(name, pretrained=False, num_classes=5, **noise, **settings)
        raise TypeError(f"{name}: it takes none of the settings")

    def parameters(settings: dict[str, Any]) -> float:
        with suppress(Exception), torch.device("meta"):
            return sum(p.numel() for p in created(**settings).parameters())
        return float("inf")

    fewer = min(SMALLER, key=parameters)
    if (count := parameters(fewer)) > MAX_PARAMETERS:
        raise ValueError(f"{count:,} parameters")
    torch.manual_seed(0)
    problem: Exception = ValueError(name)
    for side in SIDES:
        for settings in (fewer, fewer | {"img_size": side}):
            try:
                model = created(**settings).eval()
                x = torch.randn(BATCH, 3, side, side, generator=torch.Generator().manual_seed(1))
                with torch.no_grad():
                    model(x)
                    model.train()(x)
                return Made(model.eval(), (x,))
            except Exception as error:
                problem = error
    raise problem
