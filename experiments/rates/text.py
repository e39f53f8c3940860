"""Characters of Python's own documentation, and a small causal transformer that predicts each from those before it.

The text is that of ``help()``'s topics, which every Python has; topics are dealt to train, validation and test by the seed.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["CONTEXT", "Characters", "load", "vocabulary"]

Pair = tuple[Tensor, Tensor]
CONTEXT = 64
SIZES = (1_000, 250, 500)
"""Windows to train on, for validation and for test: few, so that a small network over-fits them in a short run."""


def load(folder: Path, seed: int) -> tuple[Pair, Pair, Pair, float]:
    """Windows of 64 characters; no topic is in two parts."""
    topics, _ = _topics()
    order = torch.randperm(len(topics), generator=torch.Generator().manual_seed(seed)).tolist()
    dealt = iter(order)
    train, validation, test = (_windows(dealt, topics, count) for count in SIZES)
    return train, validation, test, 1.0


def _windows(order: Iterator[int], topics: list[Tensor], count: int) -> Pair:
    """The next topics, one after another, until they fill ``count`` windows; what is left of the last is dropped."""
    found: list[Tensor] = []
    while sum(map(len, found)) < count * CONTEXT + 1:
        found.append(topics[next(order)])
    stream = torch.cat(found)[: count * CONTEXT + 1]
    return stream[:-1].view(count, CONTEXT), stream[1:].view(count, CONTEXT)


@lru_cache(maxsize=1)
def _topics() -> tuple[list[Tensor], int]:
    """Every topic as numbers, and how many different characters there are."""
    from pydoc_data.topics import topics

    texts = [topics[name] for name in sorted(topics)]
    known = {c: i for i, c in enumerate(sorted({c for c in "".join(texts) if c.isascii()}))}
    other = len(known)  # one number for all that is not ASCII
    return [torch.tensor([known.get(c, other) for c in text]) for text in texts], other + 1


def vocabulary() -> int:
    """How many different characters the text has."""
    return _topics()[1]


class Characters(nn.Module):
    """Two transformer layers; dropout behind the embedding, in attention, between and behind the feed-forward layers."""

    def __init__(self, classes: int, rate: float, width: int = 64, layers: int = 2):
        super().__init__()
        self.causal: Tensor
        self.embedding = nn.Embedding(classes, width)
        self.position = nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        self.dropout = nn.Dropout(rate)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, rate, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.output = nn.Linear(width, classes)
        causal = torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1)
        self.register_buffer("causal", causal, persistent=False)

    def forward(self, x: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time classes"]:
        time = x.shape[1]
        h = self.dropout(self.embedding(x) + self.position[:time])
        h = self.encoder(h, mask=self.causal[:time, :time], is_causal=True)
        return self.output(h)
