r"""Encoders from a user's sparse row to a Gaussian over the latent vector, and decoders from there to the catalogue.

=========== ==================================================================================================
direct      $h = a(W^\top x)$, without further hidden layers — Mult-DAE, CDAE
one-hidden  plain hidden layers — Mult-VAE, Liang et al. 2018
dense       $h_k = \mathrm{LN}(a(W_k h_{k-1} + \sum_{j<k} h_j))$ — RecVAE, Shenbin et al. 2020
gated       $h = (Wx+b) \odot \sigma(Vx+c)$ — Kim & Suh, Enhancing VAEs for Collaborative Filtering, 2019
=========== ==================================================================================================

"""

from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lbdrop.recommend.data.rows import Batch
from lbdrop.recommend.model.settings import Settings

__all__ = ["Decoder", "Encoder", "ItemTable", "Lower", "Posterior", "aligned_width"]

ACTIVATIONS = {
    "tanh": torch.tanh, "relu": F.relu, "elu": F.elu, "swish": F.silu, "sigmoid": torch.sigmoid, "identity": nn.Identity()
}  # fmt: skip


LARGE_CATALOGUE = 100_000
"""Items of a catalogue for which training makes no dense users × items table."""
PADDING_LOGIT = -1e4
"""Gives probability 0, and is finite even in half precision."""


class Posterior(NamedTuple):
    """A Gaussian for each row, and the last hidden layer that it came from."""

    mean: Float[Tensor, "*rows latent"]
    log_variance: Float[Tensor, "*rows latent"]
    hidden: Float[Tensor, "*rows hidden"]


class ItemTable(nn.Module):
    """The first layer, a vector for each item: the sum of the vectors of a row's items, weighted by their values.

    On a CPU the vectors are gathered and summed (``embedding_bag``), on a GPU rows are written out and multiplied: the same
    numbers, each where it is faster. Dense rows of a large catalogue would fill the memory, so they are summed on a GPU too.
    ``path`` chooses; "auto" decides by device and catalogue.
    """

    path: Literal["auto", "bag", "dense"] = "auto"

    def __init__(self, items: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(items, width)))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, values: Float[Tensor, "n entries"], batch: Batch) -> Float[Tensor, "rows width"]:
        """One row for every set of values and every user, sets first."""
        n, entries = values.shape
        summed = values.device.type == "cpu" or len(self.weight) > LARGE_CATALOGUE
        if self.path == "dense" or (self.path == "auto" and not summed):
            kind = values.device.type
            # In the precision of the product: half the memory traffic under bfloat16.
            dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
            return self.of_dense(batch.dense(values, dtype, aligned_width(batch.items)).flatten(0, 1))
        starts = torch.arange(n, device=values.device)[:, None] * entries + batch.offsets
        sums = F.embedding_bag(
            batch.item.repeat(n),
            self.weight,
            starts.flatten(),
            mode="sum",
            per_sample_weights=values.flatten(),
        )
        return sums + self.bias

    def of_dense(self, rows: Float[Tensor, "rows _"]) -> Float[Tensor, "rows width"]:
        """Of dense rows, with or without padding columns."""
        weight = _autocast(self.weight) if rows.shape[1] == len(self.weight) else _padded(self.weight, rows.shape[1])
        return torch.addmm(self.bias, rows, weight)


class Layer(nn.Module):
    """One hidden layer: linear map (or none, after the item table), activation or gate."""

    def __init__(self, inputs: int | None, width: int, activation: str, gated: bool):
        super().__init__()
        wide = 2 * width if gated else width
        self.linear = _linear(inputs, wide) if inputs is not None else None
        self.activation, self.gated = ACTIVATIONS[activation], gated

    def forward(self, h: Float[Tensor, "rows _"], skip: Tensor | None = None) -> Float[Tensor, "rows _"]:
        h = h if self.linear is None else self.linear(h)
        h = h if skip is None else h + skip
        return F.glu(h, -1) if self.gated else self.activation(h)


class GaussianHead(nn.Module):
    """From a hidden layer to a mean and a log variance."""

    def __init__(self, inputs: int, settings: Settings):
        super().__init__()
        self.linear = _linear(inputs, 2 * settings.latent)
        self.range = settings.log_variance_range

    def forward(self, h: Float[Tensor, "rows _"]) -> tuple[Float[Tensor, "rows latent"], Float[Tensor, "rows latent"]]:
        mean, log_variance = _at_least_float32(self.linear(h)).chunk(2, -1)
        return mean, log_variance if self.range is None else log_variance.clamp(*self.range)


class Encoder(nn.Module):
    """From values at the entries of a batch to a Gaussian for each of its rows; see the table above."""

    def __init__(self, items: int, settings: Settings, users: int = 0):
        super().__init__()
        s = settings
        self.settings = s
        width = s.latent if s.encoder == "direct" else s.hidden
        gated = s.encoder == "gated"
        self.table = ItemTable(items, 2 * width if gated else width)
        self.user = nn.Parameter(torch.zeros(users, width)) if s.user_vectors else None
        count = 1 if s.encoder == "direct" else s.layers
        inputs = [None] + [width] * (count - 1)
        self.layers = nn.ModuleList(Layer(i, width, s.activation, gated) for i in inputs)
        # RecVAE's epsilon: layers of inactive units are not scaled up to unit variance.
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=0.1) for _ in inputs) if s.encoder == "dense" else None
        self.head = GaussianHead(width, s) if s.variational else None
        self.width = width

    def forward(
        self,
        values: Float[Tensor, "n entries"],
        batch: Batch,
        known_users: bool = False,
    ) -> Posterior:
        """Posteriors of shape (n, users, latent); ``known_users`` use their own vectors, if the model has them."""
        first = self.table(values, batch)
        if self.user is not None:
            vectors = (
                self.user.index_select(0, batch.number).repeat(len(values), 1) if known_users else self.user.mean(0)
            )
            first = first + vectors
        q = self._from_first(first)
        mean, log_variance, hidden = (part.unflatten(0, (len(values), batch.size)) for part in q)
        return Posterior(mean, log_variance, hidden)

    def of_dense(self, rows: Float[Tensor, "rows items"]) -> Posterior:
        """Posteriors of dense rows, for pseudo-inputs."""
        return self._from_first(self.table.of_dense(rows))

    def _from_first(self, first: Float[Tensor, "rows _"]) -> Posterior:
        h = self.layers[0](first)
        if self.norms is None:
            for layer in self.layers[1:]:
                h = layer(h)
        else:
            h = skip = self.norms[0](h)
            for layer, norm in zip(self.layers[1:], self.norms[1:], strict=True):
                h = norm(layer(h, skip))
                skip = skip + h
        h = _at_least_float32(h)
        mean, log_variance = (h, h) if self.head is None else self.head(h)
        return Posterior(mean, log_variance, h)


class Lower(nn.Module):
    """The lower of two latent levels: its posterior given row and upper level, its prior given the upper level.

    The row is given as the encoder's last hidden layer, which both levels share.
    """

    def __init__(self, settings: Settings):
        super().__init__()
        s = settings
        gated = s.decoder == "gated"
        self.joint = Layer(s.hidden + s.latent, s.hidden, s.activation, gated)
        self.joint_head = GaussianHead(s.hidden, s)
        self.above = Layer(s.latent, s.hidden, s.activation, gated)
        self.above_head = GaussianHead(s.hidden, s)

    def posterior(
        self,
        hidden: Float[Tensor, "n users hidden"],
        upper: Float[Tensor, "users latent"],
    ) -> tuple[Float[Tensor, "n users latent"], Float[Tensor, "n users latent"]]:
        """Mean and log variance for every set of rows, all given the same upper vectors."""
        n = len(hidden)
        both = torch.cat([hidden, upper.expand(n, -1, -1)], -1).flatten(0, 1)
        mean, log_variance = self.joint_head(self.joint(both))
        return mean.unflatten(0, (n, -1)), log_variance.unflatten(0, (n, -1))

    def prior(
        self, upper: Float[Tensor, "users latent"]
    ) -> tuple[Float[Tensor, "users latent"], Float[Tensor, "users latent"]]:
        return self.above_head(self.above(upper))


class Decoder(nn.Module):
    """From latent vectors to a logit for every item."""

    def __init__(self, items: int, settings: Settings):
        super().__init__()
        s = settings
        depth = 0 if s.decoder == "linear" else 1 if s.encoder == "dense" else s.layers
        widths = [s.levels * s.latent] + [s.hidden] * depth
        gated = s.decoder == "gated"
        self.layers = nn.ModuleList(Layer(width, s.hidden, s.activation, gated) for width in widths[:-1])
        self.out = _linear(widths[-1], items)

    def forward(
        self,
        eta: Float[Tensor, "rows latent"],
        width: int | None = None,
    ) -> Float[Tensor, "rows _"]:
        """Logits; a larger ``width`` adds padding columns of probability 0."""
        hidden = self.hidden(eta)
        if width is None or width == self.out.out_features:
            return self.out(hidden)
        return F.linear(hidden, _padded(self.out.weight, width), _padded(self.out.bias, width, PADDING_LOGIT))

    def hidden(self, eta: Float[Tensor, "rows latent"]) -> Float[Tensor, "rows _"]:
        """All but the last layer."""
        for layer in self.layers:
            eta = layer(eta)
        return eta


def aligned_width(items: int) -> int:
    """The columns of a table of items, rounded up so that every row is aligned for a GPU.

    Rows of 17,767 half-precision numbers are not aligned, and their products use slower kernels.
    """
    return -(-items // 64) * 64


def _padded(values: Float[Tensor, "items *width"], rows: int, value: float = 0.0) -> Float[Tensor, "rows *width"]:
    """Add rows of one value, in the precision of products."""
    kind = values.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else values.dtype
    return _CastAndPad.apply(values, rows, value, dtype)  # pyright: ignore[reportReturnType]


class _CastAndPad(torch.autograd.Function):
    """Cast and pad in one pass over the values, and one in backward: the tables are most of a step's memory traffic."""

    @staticmethod
    def forward(values: Tensor, rows: int, value: float, dtype: torch.dtype) -> Tensor:
        padded = values.new_empty((rows, *values.shape[1:]), dtype=dtype)
        padded[len(values) :] = value
        padded[: len(values)].copy_(values)
        return padded

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.items, ctx.dtype = len(inputs[0]), inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grads[0][: ctx.items].to(ctx.dtype), None, None, None


def _autocast(values: Tensor) -> Tensor:
    kind = values.device.type
    return values.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else values


def _linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
