r"""A generated shop whose customers' tastes are known, to test whether a recommender finds them.

Items are in groups, and each has a popularity. A user has a taste for one to three groups, and likes items one after the
other, none twice, each with the probability

$$ p_{ui} \propto (1 - \epsilon) \sum_g t_{ug}\, q_{i \mid g} + \epsilon\, q_i, \qquad q_i \propto r_i^{-s}, $$

with the tastes $t_u$ over groups, the item's popularity $q$ by its rank $r$, and a share $\epsilon$ of likes that follow
popularity alone. Of the unseen items, the one with the largest $p_{ui}$ is the most likely next like. So no recommender can do
better on average than to rank by $p_{ui}$; :meth:`Shop.scores` gives this ranking.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

from lbdrop.errors import DropoutError

__all__ = ["GROUPS", "Shop", "generate_shop"]

GROUPS = {
    "tea": ("green tea", "black tea", "teapot", "herbal infusion", "tea tin", "strainer"),
    "coffee": ("espresso beans", "filter coffee", "hand grinder", "moka pot", "milk jug", "cold brew"),
    "camping": ("tent", "sleeping bag", "camp stove", "lantern", "hammock", "water filter"),
    "cycling": ("saddle", "pannier", "bike light", "repair kit", "helmet", "bottle cage"),
    "garden": ("trowel", "watering can", "seed tray", "pruning shears", "rain barrel", "bird house"),
    "baking": ("rolling pin", "cake tin", "bread flour", "proving basket", "piping set", "kitchen scale"),
    "painting": ("watercolours", "sable brush", "sketch pad", "easel", "charcoal set", "palette knife"),
    "music": ("guitar strings", "metronome", "music stand", "ukulele", "tuner", "songbook"),
    "chess": ("chess set", "chess clock", "opening guide", "travel board", "endgame book", "score sheets"),
    "sewing": ("thread set", "fabric scissors", "pin cushion", "linen cloth", "pattern book", "thimble"),
    "astronomy": ("telescope", "star atlas", "eyepiece", "red torch", "moon map", "tripod"),
    "fishing": ("fishing rod", "reel", "tackle box", "landing net", "fly set", "folding stool"),
}
MAKERS = (
    "Alder", "Birch", "Cedar", "Dune", "Ember", "Fjord", "Grove", "Harbour", "Inlet", "Juniper", "Kestrel", "Linden",
    "Meadow", "North", "Orchard", "Pebble", "Quarry", "Rowan", "Sable", "Thistle", "Upland", "Valley", "Willow", "Yarrow",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Shop:
    """The likes of a shop, and the tastes that generated them."""

    interactions: pl.DataFrame
    """``user_id`` and ``item_id``, a row a like."""
    items: pl.DataFrame
    """``item_id``, ``title``, ``group``, sorted by id."""
    tastes: pl.DataFrame
    """``user_id``, ``group``, ``share``: the groups of each user's taste."""
    probabilities: Float[np.ndarray, "users items"]
    """The true probability of each item as the user's first like, in order of the ids."""

    def scores(self, users: Any, items: Any) -> Float[np.ndarray, "n m"]:
        """The true probabilities of these user ids for these item ids, such as ``held_out.users`` and ``train.items``."""
        lines = [int(user) for user in users]
        numbers = {name: number for number, name in enumerate(self.items["item_id"])}
        return self.probabilities[np.ix_(lines, [numbers[name] for name in items])]

    def best_items(self, user: int, k: int) -> pl.DataFrame:
        """The k items this user is most likely to like, with their true probabilities, best first."""
        best = np.argsort(-self.probabilities[user], kind="stable")[:k]
        return self.items[best].with_columns(probability=pl.Series(self.probabilities[user, best]))


def generate_shop(
    users: int = 2000,
    items: int = 360,
    seed: int = 0,
    *,
    groups: int = len(GROUPS),
    likes: int = 20,
    skew: float = 0.5,
    noise: float = 0.1,
) -> Shop:
    """Generate a shop.

    Args:
        users: customers, with ids 0, 1, …
        items: in equal numbers for each group.
        seed: another seed is another shop.
        groups: of items, at most 12.
        likes: mean number of a user; from half to one and a half times as many, and at most half of the items.
        skew: how fast popularity falls with rank; 0 makes all items equally popular.
        noise: share of likes that follow popularity alone.

    >>> shop = generate_shop(users=50)
    >>> shop.items["title"][0], shop.best_items(user=3, k=5)["group"].n_unique() <= 3
    ('Alder telescope', True)
    """
    if users < 1 or not 1 <= groups <= len(GROUPS) or items < 2 * groups:
        raise DropoutError(
            f"shop: want a user or more, 1 to {len(GROUPS)} groups and two items in each, got {users:,} users,"
            f" {groups} groups and {items:,} items"
        )
    if likes < 1 or skew < 0 or not 0 <= noise <= 1:
        raise DropoutError(f"shop: want likes ≥ 1, skew ≥ 0 and noise in [0, 1], got {likes}, {skew:g} and {noise:g}")
    random = np.random.default_rng(seed)
    catalogue = _catalogue(items, groups)
    group = np.arange(items) * groups // items
    popularity = (random.permutation(items) + 1.0) ** -skew
    within = np.where(group[None] == np.arange(groups)[:, None], popularity, 0.0)
    within /= within.sum(1, keepdims=True)
    tastes = _tastes(random, users, groups)
    truth = (1 - noise) * tastes @ within + noise * popularity / popularity.sum()
    # The likes drawn without replacement are those with the largest log p + Gumbel noise.
    with np.errstate(divide="ignore"):
        order = np.argsort(-(np.log(truth) + random.gumbel(size=truth.shape)), axis=1, kind="stable")
    possible = (truth > 0).sum(1)
    wanted = random.integers(max(likes // 2, 1), likes + likes // 2, size=users, endpoint=True)
    count = np.minimum(np.minimum(wanted, items // 2), possible)
    liked = order[np.arange(items)[None] < count[:, None]]
    line, kind = np.nonzero(tastes)
    names = pl.Series(sorted(GROUPS)[:groups])
    return Shop(
        pl.DataFrame({"user_id": np.repeat(np.arange(users), count), "item_id": catalogue["item_id"].gather(liked)}),
        catalogue,
        pl.DataFrame({"user_id": line, "group": names.gather(kind), "share": tastes[line, kind]}),
        truth,
    )


def _tastes(random: np.random.Generator, users: int, groups: int) -> Float[np.ndarray, "users groups"]:
    """One to three groups a user, with shares that sum to 1."""
    count = random.integers(1, min(3, groups), size=users, endpoint=True)
    rank = random.permuted(np.tile(np.arange(groups), (users, 1)), axis=1)
    share = np.where(rank < count[:, None], random.gamma(2.0, size=(users, groups)), 0.0)
    return share / share.sum(1, keepdims=True)


def _catalogue(items: int, groups: int) -> pl.DataFrame:
    """Ids in sorted order: groups by name, items numbered within."""
    group = np.arange(items) * groups // items
    first = np.searchsorted(group, np.arange(groups))
    names, rows = sorted(GROUPS), []
    for item in range(items):
        name = names[group[item]]
        number = item - int(first[group[item]])
        thing = GROUPS[name][number % 6]
        maker, model = MAKERS[number // 6 % len(MAKERS)], number // (6 * len(MAKERS))
        title = f"{maker} {thing}" + (f" {model + 1}" if model else "")
        rows.append((f"{name}-{number + 1:05d}", title, name))
    return pl.DataFrame(rows, schema=["item_id", "title", "group"], orient="row")
