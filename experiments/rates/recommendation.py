"""Users' likes, MovieLens-1M and a sample of Netflix, and the two variational autoencoders whose best rates differ.

A network reads what a user is known to like and predicts what else: of training users the same likes, of the others those that
were held out. The data and the protocol are those of :mod:`experiments.collaborative`. Beside the models of
:mod:`lbdrop.recommend` these are written as anyone would write them, with an ordinary dropout for the harness to convert.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lbdrop.metrics.ranking import mean_over_users, ndcg_at_k, top_items

__all__ = ["LikesVAE", "load", "losses", "measures", "pieces"]

Pair = tuple[Tensor, Tensor]
METHOD = {"paper": "vae-drop", "dense": "sivae-lbd-dense"}
"""Of the recommender's methods, those that widths, depths and the weight of the KL are of."""


def load(name: str, folder: Path, seed: int) -> tuple[Pair, Pair, Pair, float]:
    """The protocol's split, which no seed changes.

    Targets are 0 but at likes to be predicted, where they are 1 over the user's number of them, so that every user's loss is
    that of one like, and at likes that are known and no answer, where they are −1.
    """
    return *_parts(name, folder), 1.0


@lru_cache(maxsize=1)
def _parts(name: str, folder: Path) -> tuple[Pair, Pair, Pair]:
    # Here, for every worker imports the tasks, and few have users.
    from experiments.collaborative import samples
    from lbdrop.recommend.data.prepared import load_prepared

    split = samples.split(load_prepared(folder / "prepared" / name.removesuffix("-sample")), name)
    rows = _liked(split.train.rows)
    held = ((_liked(part.fold_in), _liked(part.held_out)) for part in (split.validation, split.test))
    validation, test = ((x, _target(y).masked_fill_(x, -1.0)) for x, y in held)
    return (rows, _target(rows)), validation, test


def _liked(rows: Any) -> Bool[Tensor, "users items"]:
    return torch.from_numpy(rows.astype(bool).toarray())


def _target(liked: Bool[Tensor, "users items"]) -> Float[Tensor, "users items"]:
    return liked / liked.sum(1, keepdim=True).clamp(min=1)


def pieces(targets: Float[Tensor, "users items"]) -> float:
    """How many likes a user has to be predicted, on average: a loss is that of one."""
    return float((targets > 0).sum() / len(targets))


class LikesVAE(nn.Module):
    """Mult-VAE (``"paper"``) or one with RecVAE's dense encoder, with dropout on the row.

    In training the latent vector is drawn, and each user's divergence from the prior comes with the logits.
    """

    def __init__(self, targets: Float[Tensor, "users items"], rate: float, kind: Literal["paper", "dense"]):
        super().__init__()
        from lbdrop.recommend.model.settings import METHODS

        items, s = targets.shape[1], METHODS[METHOD[kind]]
        self.gamma, self.beta = s.gamma, s.beta_cap
        self.dropout = nn.Dropout(rate)
        self.first = nn.Linear(items, s.hidden)
        self.hidden = Dense(s.hidden, s.layers) if kind == "dense" else nn.Tanh()
        self.posterior = nn.Linear(s.hidden, 2 * s.latent)
        shallow = s.decoder == "linear"
        below = [] if shallow else [nn.Linear(s.latent, s.hidden), nn.Tanh()]
        self.decoder = nn.Sequential(*below, nn.Linear(s.latent if shallow else s.hidden, items))

    def forward(self, liked: Bool[Tensor, "users items"]) -> Tensor | tuple[Tensor, Tensor]:
        rows = liked.float()
        mean, log_variance = self.posterior(self.hidden(self.first(self.dropout(F.normalize(rows))))).chunk(2, -1)
        if not self.training:
            return self.decoder(mean)
        # Of one like: RecVAE's weight, or where Mult-VAE's ends, which is a user's.
        weight = self.beta / rows.sum(-1).clamp(min=1) if self.gamma is None else self.gamma
        kl = weight * 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(-1)
        return self.decoder(mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)), kl


class Dense(nn.Module):
    """Layers that add up all before them, each normalised, as in RecVAE; the first comes without its linear map."""

    def __init__(self, width: int, layers: int):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=0.1) for _ in range(layers))
        self.linear = nn.ModuleList(nn.Linear(width, width) for _ in range(layers - 1))

    def forward(self, h: Float[Tensor, "users width"]) -> Float[Tensor, "users width"]:
        h = before = self.norms[0](F.silu(h))
        for linear, norm in zip(self.linear, self.norms[1:], strict=True):
            h = norm(F.silu(linear(h) + before))
            before = before + h
        return h


def losses(model: Any, x: Bool[Tensor, "users items"], y: Float[Tensor, "users items"]) -> Float[Tensor, "users"]:
    """The multinomial negative log likelihood of a user's likes, by their number; in training, the bound."""
    logits, kl = model(x) if model.training else (model(x), 0.0)
    return kl - (logits.log_softmax(-1) * y.clamp(min=0)).sum(-1)


def measures(probabilities: Float[Tensor, "users items"], y: Float[Tensor, "users items"]) -> dict[str, float]:
    """NLL of one like, averaged over users, and how well the ranking of what is not known begins with what was held out."""
    # The mean of a few masks may round to 0 where an item is all but excluded.
    log_p = probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()
    found = ndcg_at_k(top_items(probabilities, y < 0, 100), y > 0, 100)
    of_users = -(log_p * y.clamp(min=0)).sum(-1)[(y > 0).any(-1)]
    return {"nll": float(of_users.mean()), "ndcg@100": float(mean_over_users(found).mean)}
