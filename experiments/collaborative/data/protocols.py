"""The data sets of the literature by name: how each is read, and what is kept of it.

| name | likes | filters | users held out, twice |
|---|---|---|---|
| ml-20m | ratings of 4 and more | users with 5 items | 10,000 |
| netflix | ratings of 4 and more | users with 5 items | 40,000 |
| msd | every play | items with 200 users, then users with 20 items | 50,000 |
| ml-1m | ratings of 4 and more | users with 5 items | 750 |

The first three as in Liang et al., Variational Autoencoders for Collaborative Filtering, WWW 2018, with the counts published
there or by its authors; MovieLens-1M is not in that paper, and an eighth of its users held out is our choice.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from experiments.collaborative.data.movielens import read_ml_1m, read_ml_20m
from experiments.collaborative.data.msd import read_msd
from experiments.collaborative.data.netflix import read_netflix
from experiments.collaborative.data.official_files import Progress, Ratings
from lbdrop.errors import DropoutError
from lbdrop.recommend.data.interactions import Interactions
from lbdrop.recommend.data.splits import SEED, Split, split_users

__all__ = ["PROTOCOLS", "Protocol", "get_protocol", "read"]


@dataclass(frozen=True)
class Protocol:
    """What is kept of a data set, and how many users are held out."""

    name: str
    title: str
    reader: Callable[..., Ratings]
    at_least: float
    held_out_users: int
    min_user_items: int = 0
    min_item_users: int = 0
    seed: int = SEED
    published: dict[str, int] = field(default_factory=dict)
    """Counts to compare with, by the names of :func:`experiments.collaborative.data.prepare.counts`."""

    def interactions(self, ratings: Ratings) -> Interactions:
        """Likes, filtered. A source of likes alone has no weights to compare."""
        return Interactions.from_frame(
            ratings.frame,
            at_least=self.at_least if "weight" in ratings.frame.columns else None,
            min_user_items=self.min_user_items,
            min_item_users=self.min_item_users,
        )

    def split(self, interactions: Interactions) -> Split:
        return split_users(interactions, self.held_out_users, self.seed)

    def settings(self) -> dict[str, float]:
        """The numbers that make the data what they are."""
        names = ("at_least", "min_user_items", "min_item_users", "held_out_users", "seed")
        return {name: value for name, value in asdict(self).items() if name in names}


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "ml-20m",
            "MovieLens-20M",
            read_ml_20m,
            at_least=4,
            min_user_items=5,
            held_out_users=10_000,
            published={
                "events": 9_990_682,
                "users": 136_677,
                "items": 20_720,
                "train items": 20_108,
                "train users": 116_677,
                "validation held-out": 142_514,
                "test held-out": 139_775,
            },
        ),
        Protocol(
            "netflix",
            "Netflix Prize",
            read_netflix,
            at_least=4,
            min_user_items=5,
            held_out_users=40_000,
            published={"events": 56_880_037, "users": 463_435, "items": 17_769},
        ),
        Protocol(
            "msd",
            "Million Song Dataset, taste profile",
            read_msd,
            at_least=1,
            min_user_items=20,
            min_item_users=200,
            held_out_users=50_000,
            published={"events": 33_633_450, "users": 571_355, "items": 41_140},
        ),
        Protocol("ml-1m", "MovieLens-1M", read_ml_1m, at_least=4, min_user_items=5, held_out_users=750),
    )
}


def get_protocol(name: str) -> Protocol:
    if name not in PROTOCOLS:
        raise DropoutError(f"data set: want one of {', '.join(PROTOCOLS)}, got {name!r}")
    return PROTOCOLS[name]


def read(name: str, source: str | Path, *, allow_partial: bool = False, progress: Progress | None = None) -> Ratings:
    """Everything the official files of a data set have, before any filter.

    Args:
        name: ``ml-20m``, ``ml-1m``, ``netflix`` or ``msd``.
        source: a folder, an archive or a file; what is looked for is told in the file of each reader.
        allow_partial: go on where ratings are missing, or there are too many.
        progress: called with the bytes read so far and those to read.
    """
    return get_protocol(name).reader(source, allow_partial=allow_partial, progress=progress)
