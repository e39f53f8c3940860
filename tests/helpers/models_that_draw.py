"""Small models that draw inside of functions, each in another way, as models that other people write do."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    """A branch under stochastic depth, written as timm and torchvision write it."""

    def __init__(self, rate: float = 0.3):
        super().__init__()
        self.fc, self.rate = nn.Linear(2, 2), rate

    def forward(self, x: Tensor) -> Tensor:
        branch = torch.tanh(self.fc(x))
        kept = x.new_empty((len(x), 1)).bernoulli_(1 - self.rate) if self.training else x.new_ones((len(x), 1))
        return x + branch * (kept / (1 - self.rate) if self.training else kept)


class DropPath(nn.Module):
    def __init__(self, rate: float):
        super().__init__()
        self.drop_prob = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = x.new_empty((len(x), *[1] * (x.dim() - 1))).bernoulli_(1 - self.drop_prob)
        return x * kept / (1 - self.drop_prob)


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
        self.path = nn.ModuleList(DropPath(0.1 * (i + 1)) for i in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for fc, path in zip(self.fc, self.path, strict=True):
            x = x + path(torch.tanh(fc(x)))
        return x


class Attention(nn.Module):
    """Scores with a bias of positions, as in T5, through the fused function or by hand."""

    def __init__(self, fused: bool):
        super().__init__()
        self.qkv, self.bias, self.fused = nn.Linear(2, 6), nn.Parameter(torch.randn(2, 2)), fused

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each[:, None] for each in self.qkv(x).chunk(3, -1))
        if self.fused:
            rate = 0.4 if self.training else 0.0
            return F.scaled_dot_product_attention(q, k, v, self.bias[None, None], dropout_p=rate)[:, 0]
        weights = torch.softmax(q @ k.transpose(-2, -1) * 2**-0.5 + self.bias, -1)
        return (F.dropout(weights, 0.4, self.training) @ v)[:, 0]


class Windows(nn.Module):
    """Examples are cut in two windows each, which go along the batch axis."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop = nn.Linear(2, 2), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        windows = torch.tanh(self.fc(x.view(-1, 2, 2).flatten(0, 1)))
        return self.drop(windows).view(len(x), -1)


class Skipping(nn.Module):
    """Layers that are skipped by chance, the way of BART and of wav2vec 2.0."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: Tensor, scale: float = 1.0) -> tuple[Tensor, None]:
            return x + scale * torch.tanh(self.fc(x)), None

    def __init__(self, rate: float = 0.3) -> None:
        super().__init__()
        self.layers, self.rate = nn.ModuleList(self.Layer() for _ in range(3)), rate

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if self.training:
                toss = torch.rand([])
                if toss < self.rate:
                    continue
            x = layer(x, scale=2.0)[0]
        return x


class DropBlock(nn.Module):
    """What is around a seed is dropped, the way of timm and of torchvision."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        block = torch.empty_like(x).bernoulli_(self.rate)
        block = 1 - F.max_pool2d(block, 3, stride=1, padding=1)
        return x * block * (block.numel() / block.to(torch.float32).sum().add(1e-7)).to(x.dtype)


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop = nn.Linear(2, 8), DropBlock(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(torch.tanh(self.fc(x)).view(-1, 1, 2, 4)).flatten(1)


class OwnScale(Blocks):
    """DropBlock of each example, scaled by what is left of that: no example depends on the seeds of another."""

    class PerExample(DropBlock):
        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                return x
            block = torch.empty_like(x).bernoulli_(self.rate)
            block = 1 - F.max_pool2d(block, 3, stride=1, padding=1)
            return x * block * (block[0].numel() / (block.sum((1, 2, 3), keepdim=True) + 1e-7))

    def __init__(self) -> None:
        super().__init__()
        self.drop = self.PerExample(0.2)


def t5_block() -> nn.Module:
    """A block of T5 with its positions, whose attention alone drops."""
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Block

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = T5Config(d_model=2, d_kv=2, d_ff=4, num_heads=1, dropout_rate=0.0)
            self.block = T5Block(config, has_relative_attention_bias=True, layer_idx=0)
            attention: Any = self.block.layer[0].SelfAttention
            attention.dropout = 0.4
            attention.relative_attention_bias.weight.data.normal_(0, 2.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.block(x)[0]

    return Block()
