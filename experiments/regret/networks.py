"""The families of networks: plain PyTorch, with the dropouts that people put there, all at one rate."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.networks.residual import Block
from experiments.rates.text import Characters
from experiments.regret.distribution import Setup

__all__ = ["build"]


def build(setup: Setup, x: Tensor, outputs: int, rate: float) -> nn.Module:
    """The network of a setup for inputs like these."""
    return BUILDERS[setup.family](setup, x, outputs, rate)


# ---------------------------------------------------------------------------------------------------------- of vectors


def _mlp(setup: Setup, x: Tensor, outputs: int, rate: float) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten(), *[nn.Dropout(rate)] * setup.input_dropout]
    width = x[0].numel()
    for _ in range(setup.depth):
        layers += [
            nn.Linear(width, setup.width),
            *[nn.BatchNorm1d(setup.width)] * setup.norm,
            nn.ReLU(),
            nn.Dropout(rate),
        ]
        width = setup.width
    return nn.Sequential(*layers, nn.Linear(width, outputs))


class WordsVAE(nn.Module):
    """The recommender's network on the words of a text: dropout on the row, a latent Gaussian, a linear decoder."""

    def __init__(self, words: int, width: int, rate: float, latent: int = 24):
        super().__init__()
        self.dropout, self.hidden = nn.Dropout(rate), nn.Linear(words, width)
        self.posterior, self.decoder = nn.Linear(width, 2 * latent), nn.Linear(latent, words)

    def forward(self, rows: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.hidden(self.dropout(F.normalize(rows))))
        mean, log_variance = self.posterior(hidden).chunk(2, -1)
        if not self.training:
            return self.decoder(mean)
        kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(-1)
        latent = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.decoder(latent), 0.2 * kl / rows.sum(-1).clamp(min=1)


# ----------------------------------------------------------------------------------------------------------- of images


def _cnn(setup: Setup, x: Tensor, outputs: int, rate: float) -> nn.Module:
    layers: list[nn.Module] = [nn.Unflatten(1, (1, x.shape[1]))]
    channels, side = 1, x.shape[-1]
    for level in range(min(setup.depth, 2)):
        wide = setup.width * (1 + level)
        norm = [nn.BatchNorm2d(wide)] if setup.family == "cnn-batchnorm" else []
        layers += [nn.Conv2d(channels, wide, 3, padding=1), *norm, nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Dropout2d(rate)] * setup.input_dropout
        channels, side = wide, side // 2
    hidden = 8 * setup.width
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(channels * side * side, hidden), nn.ReLU(), nn.Dropout(rate),
        nn.Linear(hidden, outputs),
    )  # fmt: skip


def _residual(setup: Setup, x: Tensor, outputs: int, rate: float) -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, x.shape[1])), nn.Conv2d(1, setup.width, 3, padding=1), nn.MaxPool2d(2),
        *(Block(setup.width, rate) for _ in range(setup.depth)),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(rate), nn.Linear(4 * setup.width, outputs),
    )  # fmt: skip


class PixelGraph(nn.Module):
    """A graph network: pixels are nodes that see the mean of their four neighbours, and dropout is on the nodes' features."""

    def __init__(self, side: int, width: int, depth: int, outputs: int, rate: float):
        super().__init__()
        self.neighbours: Tensor
        self.register_buffer("neighbours", _grid(side))
        self.place = nn.Parameter(0.1 * torch.randn(side * side, width))
        self.first = nn.Linear(1, width)
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.theirs = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.dropouts = nn.ModuleList(nn.Dropout(rate) for _ in range(depth))
        self.output = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.flatten(1)[..., None]) + self.place
        for own, theirs, dropout in zip(self.own, self.theirs, self.dropouts, strict=True):
            h = dropout(F.relu(own(h) + theirs(self.neighbours @ h)))
        return self.output(h.amax(1))


def _grid(side: int) -> Tensor:
    """Each row has the shares of a node's neighbours."""
    place = torch.arange(side * side)
    row, column = place // side, place % side
    near = (row[:, None] - row).abs() + (column[:, None] - column).abs() == 1
    return near.float() / near.sum(1, keepdim=True)


# -------------------------------------------------------------------------------------------------------- of sequences


class Tokens(nn.Module):
    """Characters by an embedding; images row by row."""

    def __init__(self, x: Tensor, width: int):
        super().__init__()
        self.embedding = nn.Linear(x.shape[-1], width) if x.dim() == 3 else nn.Embedding(128, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.embedding(x)


class Recurrent(nn.Module):
    """An LSTM that reads to the end; dropout on its inputs, between its layers and on its last state."""

    def __init__(self, setup: Setup, x: Tensor, outputs: int, rate: float):
        super().__init__()
        self.tokens, self.dropout = Tokens(x, setup.width), nn.Dropout(rate)
        between = rate if setup.depth > 1 else 0.0
        self.lstm = nn.LSTM(setup.width, setup.width, setup.depth, batch_first=True, dropout=between)
        self.last, self.output = nn.Dropout(rate), nn.Linear(setup.width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.last(self.lstm(self.dropout(self.tokens(x)))[0][:, -1]))


class Encoder(nn.Module):
    """A transformer encoder; dropout behind the embedding, in attention, between and behind the feed-forward layers."""

    def __init__(self, setup: Setup, x: Tensor, outputs: int, rate: float):
        super().__init__()
        self.tokens, self.dropout = Tokens(x, setup.width), nn.Dropout(rate)
        self.position = nn.Parameter(0.02 * torch.randn(x.shape[1], setup.width))
        layer: Any = nn.TransformerEncoderLayer(
            setup.width, 2 + 2 * (setup.width >= 48), 2 * setup.width, rate, batch_first=True,
            norm_first=setup.family == "encoder-pre-norm",
        )  # fmt: skip
        self.encoder = nn.TransformerEncoder(layer, setup.depth, enable_nested_tensor=False)
        self.output = nn.Linear(setup.width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.encoder(self.dropout(self.tokens(x) + self.position)).mean(1))


BUILDERS: dict[str, Any] = {
    "mlp": _mlp, "deep-mlp": _mlp, "wide-head": _mlp, "cnn": _cnn, "cnn-batchnorm": _cnn,
    "residual-stochastic-depth": _residual,
    "graph": lambda s, x, outputs, rate: PixelGraph(x.shape[-1], s.width, s.depth, outputs, rate),
    "lstm": Recurrent, "encoder-pre-norm": Encoder, "encoder-post-norm": Encoder,
    "causal": lambda s, x, outputs, rate: Characters(outputs, rate, s.width, s.depth),
    "vae": lambda s, x, outputs, rate: WordsVAE(outputs, s.width, rate),
}  # fmt: skip
