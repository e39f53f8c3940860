"""The networks that benchmarks.overhead trains: each with ordinary dropout, a batch, and one loss per example.

Transformers, ConvNeXt and the causal model are those of the transformers library, built from a configuration.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.networks.vgg import VGG

__all__ = ["TASKS", "Task"]

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """A network and what it is trained on."""

    model: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    """Inputs and targets, fresh ones at each call."""
    losses: Callable[[nn.Module, Tensor, Tensor], Tensor]
    in_functions: bool = False
    """Whether some dropout is a call in the model's code, which ``convert`` finds with an example."""
    kind: Any = "classification"

    def forward(self, model: nn.Module, x: Tensor) -> Tensor:
        output = model(x)
        return getattr(output, "logits", output)


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    output = model(x)
    return F.cross_entropy(getattr(output, "logits", output), y, reduction="none")


def squared(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x)[:, 0] - y).square()


def next_token(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).logits.transpose(1, 2), y, reduction="none").mean(1)


def multinomial(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits, kl = model(x)
    return -(y * logits.log_softmax(1)).sum(1) + 0.2 * kl


# --------------------------------------------------------------------------------------------------------------- networks


class Encoder(nn.Module):
    """A transformer that classifies sequences of tokens."""

    def __init__(self, layers: int, width: int):
        super().__init__()
        self.embed = nn.Embedding(100, width)
        layer = nn.TransformerEncoderLayer(width, width // 32, 4 * width, 0.1, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, layers), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


class Block(nn.Module):
    """A residual block of convolutions, whole channels dropped between."""

    def __init__(self, width: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout2d(0.1),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.body(x))


def residual_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), Block(32), Block(32),
        nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(), Block(64), Block(64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


class Recurrent(nn.Module):
    """Two levels of an LSTM, dropout between them and before the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 128)
        self.lstm = nn.LSTM(128, 256, 2, batch_first=True, dropout=0.2)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.lstm(self.embed(x))[0][:, -1]))


class MultVAE(nn.Module):
    """The recommender's network (Liang et al. 2018): half of a user's items dropped, a latent Gaussian, all items scored."""

    def __init__(self, items: int = 3000, hidden: int = 600, latent: int = 200):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.encoder = nn.Sequential(nn.Linear(items, hidden), nn.Tanh(), nn.Linear(hidden, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.Tanh(), nn.Linear(hidden, items))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.encoder(self.drop(F.normalize(x))).chunk(2, -1)
        kl = 0.5 * (log_variance.exp() + mean.square() - 1 - log_variance).sum(1)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        return self.decoder(mean + noise * (0.5 * log_variance).exp()), kl


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(  # pyright: ignore[reportCallIssue]
            hidden_size=192, num_hidden_layers=6, num_attention_heads=3, intermediate_size=768, image_size=64,
            patch_size=8, num_labels=10,  # pyright: ignore[reportCallIssue]
            hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
        )
    )  # fmt: skip


def causal() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=500, n_positions=64, n_embd=192, n_layer=4, n_head=6, use_cache=False))


def convnext() -> nn.Module:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    return ConvNextForImageClassification(
        ConvNextConfig(  # pyright: ignore[reportCallIssue]
            depths=[2, 2, 4, 2],
            hidden_sizes=[32, 64, 128, 256],
            drop_path_rate=0.2,
            num_labels=10,  # pyright: ignore
        )
    )


def mlp(inputs: int, width: int, outputs: int) -> nn.Module:
    hidden = lambda size: [nn.Linear(size, width), nn.ReLU(), nn.Dropout(0.2)]  # noqa: E731
    return nn.Sequential(*hidden(inputs), *hidden(width), nn.Linear(width, outputs))


# ----------------------------------------------------------------------------------------------------------------- tasks


def tokens(batch: int, length: int = 64, vocabulary: int = 100) -> Callable[[], Batch]:
    return lambda: (torch.randint(vocabulary, (batch, length)), torch.randint(10, (batch,)))


def images(batch: int, size: int) -> Callable[[], Batch]:
    return lambda: (torch.rand(batch, 3, size, size), torch.randint(10, (batch,)))


def text() -> Batch:
    x = torch.randint(500, (8, 65))
    return x[:, :-1], x[:, 1:]


def likes() -> Batch:
    x = (torch.rand(200, 3000) < 0.03).float()
    return x, x


TASKS = {
    "encoder, 4 × 128": Task(lambda: Encoder(4, 128), tokens(8), cross_entropy),
    "encoder, 6 × 384": Task(lambda: Encoder(6, 384), tokens(8), cross_entropy),
    "ViT": Task(vit, images(8, 64), cross_entropy, in_functions=True),
    "causal model": Task(causal, text, next_token, in_functions=True),
    "residual CNN, Dropout2d": Task(residual_network, images(32, 32), cross_entropy),
    "ConvNeXt, stochastic depth": Task(convnext, images(8, 64), cross_entropy, in_functions=True),
    "LSTM": Task(Recurrent, tokens(32, 32), cross_entropy),
    "VGG19": Task(
        lambda: VGG(19, dropout=lambda units: nn.Dropout(0.5), classes=10, width=1024), images(16, 64), cross_entropy
    ),
    "MLP, 2 × 512": Task(
        lambda: mlp(784, 512, 10), lambda: (torch.rand(128, 784), torch.randint(10, (128,))), cross_entropy
    ),
    "MLP, 2 × 50": Task(
        lambda: mlp(8, 50, 1), lambda: (torch.randn(32, 8), torch.randn(32)), squared, kind="regression"
    ),
    "recommender's VAE": Task(MultVAE, likes, multinomial),
}
