"""How many held-out items a model finds: per user, with standard errors, by one ``topk`` for each batch on the device.

The measures are those of :mod:`lbdrop.metrics.ranking`. Items of the fold-in are never recommended. Nothing waits for the
device before the last batch, and only one batch of scores is in memory at a time.

Liang, Krishnan, Hoffman and Jebara, Variational Autoencoders for Collaborative Filtering, WWW 2018.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor, nn

from lbdrop.errors import DropoutError
from lbdrop.metrics import ranking
from lbdrop.recommend.data.rows import Batch, Rows, users_at_once
from lbdrop.recommend.data.splits import HeldOut

__all__ = ["HeldOutRows", "Report", "Scorer", "evaluate"]


@runtime_checkable
class Scorer(Protocol):
    """Anything that scores every item for the users of a batch: a VAE, a linear model."""

    def scores(self, batch: Batch) -> Float[Tensor, "size items"]: ...


Scores = Callable[[Batch], Tensor]


class HeldOutRows(NamedTuple):
    """Held-out users on the device, for repeated evaluation."""

    fold_in: Rows
    held_out: Rows

    @classmethod
    def on(cls, held_out: Any, device: torch.device | str | None) -> "HeldOutRows":
        """From :class:`HeldOut`, or anything with its two matrices."""
        pair = cls(Rows.from_csr(held_out.fold_in, device), Rows.from_csr(held_out.held_out, device))
        if pair.fold_in.users != pair.held_out.users or pair.fold_in.items != pair.held_out.items:
            raise DropoutError(
                f"held-out users: want fold-in and held-out rows of one shape, got {held_out.fold_in.shape} and"
                f" {held_out.held_out.shape}"
            )
        return pair


@dataclass(frozen=True)
class Report:
    """Measures of a model on held-out users."""

    per_user: dict[str, Float[Tensor, "users"]]
    """By name, such as ``recall@20``: a value for each user in the order of the rows, NaN without held-out items."""
    mean: dict[str, float]
    error: dict[str, float]
    """Standard errors of the means."""
    users: int
    """Users with held-out items: the means are over these."""
    coverage: float
    """Share of the catalogue recommended to anyone, in lists as long as the longest measured."""
    popularity: float | None
    """Mean popularity percentile of what is recommended; ``None`` if the training counts were not given."""
    times: Int64[Tensor, "items"]
    """How many users each item is recommended to."""
    kinds: dict[str, int] = field(default_factory=dict)
    """Users by kind, where a recommender knows them: "of fit" and "new" are those with items to find, in the means;
    "nothing to find" are the others. Then "unknown items": rows of items that it does not have, which nobody looked for."""

    def record(self) -> dict[str, Any]:
        """For JSON: without per-user values, and with ``None`` for NaN, as in the error of a single user's mean."""
        mean, error = (
            {name: _finite_or_none(value) for name, value in each.items()} for each in (self.mean, self.error)
        )
        return {"mean": mean, "standard_error": error, "users": self.users, "coverage": _finite_or_none(self.coverage),
                "popularity": _finite_or_none(self.popularity), "kinds": self.kinds}  # fmt: skip

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:.4f} ± {self.error[name]:.4f}" for name, value in self.mean.items())


def _finite_or_none(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def evaluate(
    scorer: Scorer | Scores,
    held_out: HeldOut | HeldOutRows,
    *,
    recall: tuple[int, ...] = (20, 50),
    ndcg: tuple[int, ...] = (100,),
    batch: int | None = None,
    likes: Tensor | None = None,
    device: torch.device | str | None = None,
    shared: bool = False,
) -> Report:
    """Rank the catalogue for held-out users and measure how many held-out items are found.

    Args:
        scorer: a model with ``scores(batch)``, or such a function itself:
            ``functools.partial(model.scores, samples=10, generator=g)``.
        held_out: the users; :class:`HeldOutRows` save time in repeated evaluation.
        recall: the k of Recall@k.
        ndcg: the k of NDCG@k.
        batch: users scored at once; the default is 500, and fewer for a large catalogue.
        likes: how many training users have each item, for the popularity of what is recommended.
        device: where the scorer works; the default is that of its parameters, or its ``device``.
        shared: with several processes, whether all of them make this call and share the work, batch by batch; each gets the
            same report as a single process would. Otherwise each call does all the work.
    """
    rows = held_out if isinstance(held_out, HeldOutRows) else HeldOutRows.on(held_out, device or device_of(scorer))
    measures = {f"recall@{k}": (ranking.recall_at_k, k) for k in recall}
    measures |= {f"ndcg@{k}": (ranking.ndcg_at_k, k) for k in ndcg}
    if not measures:
        raise DropoutError("recall, ndcg: want at least one k, got none")
    longest, items = max(*recall, *ndcg, 1), rows.fold_in.items
    batch = batch or users_at_once(items, 500)
    distributed = shared and dist.is_available() and dist.is_initialized()
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
    # Zero for the users of other processes, so that a sum over processes is exact.
    values = torch.zeros(len(measures) + 1, rows.fold_in.users, device=rows.fold_in.device)
    percentile = None if likes is None else ranking.popularity_percentile(likes.to(rows.fold_in.device))
    times = torch.zeros(items, dtype=torch.long, device=rows.fold_in.device)
    with _scoring(scorer) as scores:
        pairs = zip(*(each.batches(batch, shuffle=False) for each in rows), strict=True)
        for index, (fold_in, target) in islice(enumerate(pairs), rank, None, ranks):
            users = slice(index * batch, index * batch + fold_in.size)
            ranked = ranking.top_items(scores(fold_in).float(), (fold_in.user, fold_in.item), longest)
            relevant = ranking.which_items(target.user, target.item, (target.size, items))
            for row, (measure, k) in zip(values, measures.values(), strict=False):
                row[users] = measure(ranked, relevant, k)
            times += ranking.times_recommended(ranked, items, longest)
            if percentile is not None:
                values[-1, users] = ranking.popularity_at_k(ranked, percentile, longest)
    if ranks > 1:
        dist.all_reduce(values)
        dist.all_reduce(times)
    *each, shown = values.cpu()
    per_user = dict(zip(measures, each, strict=True))
    means = {name: ranking.mean_over_users(each) for name, each in per_user.items()}
    return Report(
        per_user=per_user,
        mean={name: float(m.mean) for name, m in means.items()},
        error={name: float(m.error) for name, m in means.items()},
        users=int(next(iter(means.values())).users),
        coverage=float(ranking.coverage(times)),
        popularity=None if percentile is None else float(ranking.mean_over_users(shown).mean),
        times=times.cpu(),
    )


def device_of(scorer: Any) -> torch.device:
    """The device of a scorer."""
    scorer = _object_of(scorer)
    if isinstance(scorer, nn.Module):
        return next((p.device for p in scorer.parameters()), torch.device("cpu"))
    return torch.device(getattr(scorer, "device", "cpu"))


@contextmanager
def _scoring(scorer: Scorer | Scores) -> Iterator[Scores]:
    """The scorer's function, without gradients and, if it is a network, in eval mode during the block."""
    owner = _object_of(scorer)
    network = owner if isinstance(owner, nn.Module) and owner.training else None
    if network is not None:
        network.eval()
    try:
        with torch.no_grad():
            yield scorer.scores if isinstance(scorer, Scorer) else scorer
    finally:
        if network is not None:
            network.train()


def _object_of(scorer: Any) -> Any:
    """The object of a bound method, or of a partial of one."""
    return getattr(getattr(scorer, "func", scorer), "__self__", scorer)
