"""What the figures and the page need beside measures: keep rates by popularity, and a few users with what they are shown."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from lbdrop.metrics.ranking import top_items
from lbdrop.recommend.train.evaluate import HeldOutRows, Scorer

__all__ = ["examples", "rates"]

BINS = 20
SHOWN = 12


def rates(keep: Float[Tensor, "*items"], likes: Int64[Tensor, "items"]) -> dict[str, Any]:
    """Keep rates: the one there is, or of one per item their spread, and their means in bins of equally many items."""
    if keep.dim() == 0:
        return {"per": "model", "keep": float(keep), "by_popularity": None}
    order = likes.argsort(stable=True)
    parts = [part for part in order.tensor_split(BINS) if len(part)]
    return {
        "per": "item",
        "keep": float(keep.mean()),
        "min": float(keep.min()),
        "max": float(keep.max()),
        # An item that many users have is dropped more often than its share of the catalogue says.
        "keep_of_a_like": float((keep * likes).sum() / likes.sum()),
        "counts": torch.histc(keep.float(), BINS, 0, 1).long().tolist(),
        "by_popularity": [
            {
                "items": len(part),
                "likes": float(likes[part].double().mean()),
                "keep": float(keep[part].mean()),
                "standard_deviation": float(keep[part].std(unbiased=False)),
            }
            for part in parts
        ],
    }


def examples(scorer: Any, test: HeldOutRows, likes: Int64[Tensor, "items"], ids: Any = None) -> list[dict[str, Any]]:
    """Three test users, of few, middling and many items: what they have, what was hidden, and what they are shown.

    Items are given by their original ids where those are known, by column otherwise.
    """
    counts = np.diff(test.fold_in.starts)
    scored = np.flatnonzero(np.diff(test.held_out.starts) > 0)
    if not len(scored):
        return []
    ranked = scored[np.argsort(counts[scored], kind="stable")]
    users = list(dict.fromkeys(int(ranked[int(share * (len(ranked) - 1))]) for share in (0.25, 0.5, 0.75)))
    batch = test.fold_in.batch(users)
    with torch.no_grad():
        scores = (scorer.scores if isinstance(scorer, Scorer) else scorer)(batch)
    best = top_items(scores.float(), (batch.user, batch.item), SHOWN).tolist()
    found = [[item for item in row if item >= 0] for row in best]
    given, wanted = ([rows.batch([user]).item.tolist() for user in users] for rows in test)
    popular = likes.tolist()

    def named(columns: list[int]) -> list[Any]:
        return columns if ids is None else [_plain(ids[column]) for column in columns]

    return [
        {
            "user": user,
            "items": len(has),
            "has": named(sorted(has, key=lambda item: -popular[item])[:SHOWN]),
            "shown": [
                {"item": item, "held_out": hit}
                for item, hit in zip(named(shown), [column in hidden for column in shown], strict=True)
            ],
            "held_out": len(hidden),
        }
        for user, has, hidden, shown in zip(users, given, wanted, found, strict=True)
    ]


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
