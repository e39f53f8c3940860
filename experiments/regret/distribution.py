"""The distribution that setups are drawn from: a network, its data, and how it is trained, none of them chosen by anybody.

A setup is one draw: first the family of networks, uniformly, then each setting by itself. What would take too long is drawn
again as a whole, so that small data are trained for long and large ones briefly. The development half and the verdict half
are draws of other seeds. Nothing but ``random()`` of Python's generator is used: the same setups come with every version.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["FAMILIES", "HALVES", "Setup", "draw"]

HALVES: dict[str, int] = {"development": 1, "verdict": 2, "second-verdict": 3}
"""The seed that each half is drawn with; the second verdict is of the rule that trains without noise until there is a gap."""

UCI = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht")
FAMILIES: dict[str, tuple[str, ...]] = {
    "mlp": ("digits", "fashion", *(f"uci-{name}" for name in UCI)),
    "deep-mlp": ("digits", "fashion", *(f"uci-{name}" for name in UCI)),
    "wide-head": ("digits", "fashion"),
    "cnn": ("digits", "fashion"),
    "cnn-batchnorm": ("digits", "fashion"),
    "residual-stochastic-depth": ("digits", "fashion"),
    "graph": ("digits", "fashion"),
    "lstm": ("digits", "fashion", "topics", "letters"),
    "encoder-pre-norm": ("digits", "fashion", "topics", "letters"),
    "encoder-post-norm": ("digits", "fashion", "topics", "letters"),
    "causal": ("characters",),
    "vae": ("words",),
}
"""Families of networks, and the data that each may get."""
EXAMPLES = {
    "digits": 1_797, "fashion": 20_000, "topics": 7_500, "letters": 12_000, "characters": 9_000, "words": 2_300,
    "uci-boston": 506, "uci-concrete": 1_030, "uci-energy": 768, "uci-kin8nm": 8_192, "uci-naval": 11_934,
    "uci-power": 9_568, "uci-protein": 20_000, "uci-wine": 1_599, "uci-yacht": 308,
}  # fmt: skip
"""How many each of the data has, test examples among them."""
LEAST_STEPS = 80
SECONDS = 2.5
"""What training once may take by the estimate below."""
STEP = {
    "mlp": 0.9, "deep-mlp": 1.4, "wide-head": 1.0, "cnn": 1.5, "cnn-batchnorm": 1.8, "residual-stochastic-depth": 2.4,
    "graph": 1.2, "lstm": 3.0, "encoder-pre-norm": 3.0, "encoder-post-norm": 3.0, "causal": 3.5, "vae": 1.2,
}  # fmt: skip
"""Milliseconds of a step with small batches on one core; what an example adds follows its arithmetic."""
ARITHMETIC = 1e10
"""Multiply-adds that a core does in a second."""


@dataclass(frozen=True)
class Setup:
    """One draw."""

    name: str
    family: str
    data: str
    width: int
    depth: int
    norm: bool
    """BatchNorm behind hidden layers of an MLP; other families have theirs or none."""
    input_dropout: bool
    examples: int
    """To train on; as many as ``held_out`` times that are held out beside them."""
    held_out: float
    label_noise: float
    """The share of examples that have the answer of another one, wherever they are: in training, held out or in the test."""
    epochs: int
    batch: int
    optimizer: str
    lr: float
    weight_decay: float
    warm_up: float
    """The share of the steps in which the learning rate rises from 0."""
    schedule: str
    clip: float
    """The norm that gradients are clipped to; 0 leaves them."""

    @property
    def steps(self) -> int:
        """Of training once; a last batch that is short is left out."""
        return self.epochs * max(1, self.examples // self.batch)

    @property
    def seconds(self) -> float:
        """About what training once takes on one core."""
        per_example = 3 * _multiply_adds(self) / ARITHMETIC
        return self.steps * (1e-3 * STEP[self.family] * self.depth**0.5 + self.batch * per_example)


def draw(half: str, count: int) -> list[Setup]:
    """The first setups of a half."""
    rng = random.Random(HALVES[half])
    return [_draw(rng, f"{half}-{i:03d}") for i in range(count)]


def _draw(rng: random.Random, name: str) -> Setup:
    family = _one_of(rng, list(FAMILIES))
    data = _one_of(rng, FAMILIES[family])
    while True:
        setup = _settings(rng, name, family, data)
        if setup.seconds <= SECONDS and setup.steps >= LEAST_STEPS:
            return setup


def _settings(rng: random.Random, name: str, family: str, data: str) -> Setup:
    recurrent_or_attention = family in ("lstm", "encoder-pre-norm", "encoder-post-norm", "causal")
    examples = min(_between(rng, 100, 10_000), int(0.5 * EXAMPLES[data]))
    optimizer = _one_of(rng, ("adam", "adam", "adamw", "adamw", "sgd", "rmsprop"))
    low, high = {"sgd": (0.01, 0.2), "rmsprop": (2e-4, 3e-3)}.get(optimizer, (3e-4, 6e-3))
    if family == "wide-head":
        low, high = low / 3, high / 3
    narrow = (16, 64) if recurrent_or_attention or family.startswith(("cnn", "residual", "graph")) else (32, 256)
    if family in ("cnn", "cnn-batchnorm", "residual-stochastic-depth"):
        narrow = (8, 24)
    if family == "wide-head":
        narrow = (256, 768)
    depth = {"mlp": 1, "wide-head": 2, "vae": 1}.get(family) or 1 + int(
        rng.random() * (3 if family != "deep-mlp" else 4)
    )
    settings: dict[str, Any] = {
        "width": 8 * max(1, round(_between(rng, *narrow) / 8)),
        "depth": depth + (family == "deep-mlp"),
        "norm": family in ("mlp", "deep-mlp") and rng.random() < 0.2,
        "input_dropout": rng.random() < 0.5 and family != "wide-head",
        "examples": examples,
        "held_out": _one_of(rng, (0.1, 0.2, 0.25, 0.35)),
        "label_noise": _one_of(rng, (0.0, 0.0, 0.1, 0.3)) if family not in ("causal", "vae") else 0.0,
        "epochs": _between(rng, 2, 60),
        "batch": min(_between(rng, 10, 200), examples // 4),
        "optimizer": optimizer,
        "lr": float(f"{low * (high / low) ** rng.random():.2g}"),
        "weight_decay": _one_of(rng, (0.01, 0.1)) if optimizer == "adamw" else _one_of(rng, (0.0, 0.0, 1e-4)),
        "warm_up": _one_of(rng, (0.0, 0.0, 0.05, 0.1)),
        "schedule": _one_of(rng, ("constant", "cosine", "linear")),
        "clip": _one_of(rng, (0.0, 1.0)),
    }  # fmt: skip
    return Setup(name, family, data, **settings)


def _one_of(rng: random.Random, values: Sequence[Any]) -> Any:
    return values[int(rng.random() * len(values))]


def _between(rng: random.Random, low: int, high: int) -> int:
    """Uniform in its logarithm."""
    return round(math.exp(math.log(low) + rng.random() * math.log(high / low)))


def _multiply_adds(setup: Setup) -> float:
    """About how many an example takes in one pass."""
    w, d = setup.width, setup.depth
    pixels = 64 if setup.data == "digits" else 196
    tokens = {"digits": 8, "fashion": 14, "topics": 32, "letters": 16, "characters": 32}.get(setup.data, 1)
    if setup.family in ("mlp", "deep-mlp", "wide-head"):
        return pixels * w + (d - 1) * w * w
    if setup.family in ("cnn", "cnn-batchnorm"):
        return pixels * (9 * w + 9 * w * w / 2 * (d > 1)) + pixels * w * 8
    if setup.family == "residual-stochastic-depth":
        return pixels * (9 * w + 18 * d * w * w)
    if setup.family == "graph":
        return pixels * (4 * w + d * (w * w + 5 * w))
    if setup.family == "lstm":
        return tokens * 8 * d * w * w
    if setup.family == "vae":
        return 4 * 400 * w
    return tokens * d * (8 * w * w + 2 * tokens * w) + 80 * tokens * w * (setup.family == "causal")
