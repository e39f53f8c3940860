"""Items that nobody has had: MovieLens-1M's genres and years rank movies that were held out of training entirely.

    python -m benchmarks.cold_items data/ml-1m.npz

A fifth of the movies is taken out of training, with all their likes (ratings of 4 and 5). The recommender is fitted to the
others, with genres and year of all as ``item_features``. Each of 1,000 users is then given a ranking of the movies taken out,
by what they like among the others. Beside it: chance; the mean likes of a movie's genres, the same for everybody; and the
shares of a user's likes that have each of the movie's genres, added up. There are three draws of movies and
users; the first was looked at while the method was built. The ridge is chosen by the items that are left.
"""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import torch
import typer
from jaxtyping import Float
from scipy.sparse import csr_array

from lbdrop.io.records import provenance, write_json
from lbdrop.metrics.ranking import mean_over_users, ndcg_at_k, recall_at_k, top_items
from lbdrop.recommend import Recommender

__all__ = ["compared", "main", "movies"]

RESULT = Path(__file__).parent / "results" / "cold_items.json"
SHARE, USERS = 0.2, 1_000


def movies(path: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Likes, and what each movie is."""
    with np.load(path) as arrays:
        good = arrays["rating"] >= 4
        likes = pl.DataFrame({"user_id": arrays["user"][good], "item_id": arrays["item"][good]})
        genres = [str(each).split() for each in arrays["genres"]]
        year = [float(each) if str(each) else None for each in arrays["year"]]
    items = pl.DataFrame({"item_id": np.arange(len(genres), dtype=np.int32), "genres": genres, "year": year})
    return likes, items


def compared(likes: pl.DataFrame, items: pl.DataFrame, method: str, seed: int) -> dict[str, Any]:
    """Measures of one draw of movies and users, by contestant."""
    random = np.random.default_rng(seed)
    liked = likes["item_id"].unique().sort().to_numpy()
    cold = pl.Series(np.sort(random.choice(liked, round(SHARE * len(liked)), replace=False)))
    train = likes.filter(~pl.col("item_id").is_in(cold.implode()))
    hidden = likes.filter(pl.col("item_id").is_in(cold.implode()) & pl.col("user_id").is_in(train["user_id"].implode()))
    users = np.sort(random.choice(hidden["user_id"].unique().sort().to_numpy(), USERS, replace=False))
    model = Recommender(method, seed=seed, device="cpu", progress=False).fit(train, item_features=items)
    place = {item: number for number, item in enumerate(cold)}
    row = {user: number for number, user in enumerate(users)}
    relevant = torch.zeros(len(users), len(cold), dtype=torch.bool)
    for user, item in hidden.filter(pl.col("user_id").is_in(pl.Series(users).implode())).iter_rows():
        relevant[row[user], place[item]] = True
    best = model.recommend(users, k=len(cold), items_to_recommend=cold)
    ours = torch.full((len(users), len(cold)), -torch.inf)
    index = [[row[user] for user in best["user_id"]], [place[item] for item in best["item_id"]]]
    ours[index[0], index[1]] = torch.from_numpy(best["score"].to_numpy().copy())
    contestants = {"item features": ours} | rules(train, items, cold, users, random)
    measured = {name: _measures(scores, relevant) for name, scores in contestants.items()}
    found = {name: {key: _mean(value) for key, value in each.items()} for name, each in measured.items()}
    for name, each in measured.items():
        found[name]["ndcg@100 minus item features"] = _mean(each["ndcg@100"] - measured["item features"]["ndcg@100"])
    assert model.new_items_ is not None
    return {"seed": seed, "cold_items": len(cold), "ridge": model.new_items_.ridge, "contestants": found}


def rules(
    train: pl.DataFrame, items: pl.DataFrame, cold: pl.Series, users: np.ndarray, random: np.random.Generator
) -> dict[str, Float[torch.Tensor, "users cold"]]:
    """What can be said of a new movie without a model."""
    names = sorted({genre for each in items["genres"] for genre in each})
    has = np.array([[name in each for name in names] for each in items["genres"]], float)
    count = np.bincount(train["item_id"].to_numpy(), minlength=len(items)).astype(float)
    warm = count > 0
    likes_of_genre = (has * count[:, None]).sum(0) / has[warm].sum(0).clip(min=1)
    rows = train.filter(pl.col("user_id").is_in(pl.Series(users).implode()))
    mine = csr_array(
        (np.ones(len(rows)), (np.searchsorted(users, rows["user_id"].to_numpy()), rows["item_id"].to_numpy())),
        shape=(len(users), len(items)),
    )
    tastes = (mine @ has) / mine.sum(1)[:, None].clip(min=1)
    share = has[cold.to_numpy()] / has[cold.to_numpy()].sum(1, keepdims=True).clip(min=1)
    shape = (len(users), len(cold))
    scores = {
        "popularity of genres": np.broadcast_to(share @ likes_of_genre, shape),
        "the user's genres": tastes @ has[cold.to_numpy()].T,
        "chance": random.random(shape),
    }
    return {name: torch.from_numpy(each.copy()) for name, each in scores.items()}


def _measures(scores: torch.Tensor, relevant: torch.Tensor) -> dict[str, torch.Tensor]:
    ranked = top_items(scores, None, 100)
    return {"ndcg@100": ndcg_at_k(ranked, relevant, 100), "recall@20": recall_at_k(ranked, relevant, 20)}


def _mean(values: torch.Tensor) -> list[float]:
    mean = mean_over_users(values)
    return [float(mean.mean), float(mean.error)]


def main(
    file: Annotated[Path, typer.Argument(help="ml-1m.npz.")],
    method: Annotated[str, typer.Option(help="The method that scores what users have.")] = "edlae",
    seeds: Annotated[int, typer.Option(min=1, help="Draws of movies and users.")] = 3,
    out: Annotated[Path, typer.Option(help="The record.")] = RESULT,
) -> None:
    """Rank movies that were held out of training, and write the record."""
    likes, items = movies(file)
    runs = [compared(likes, items, method, seed) for seed in range(seeds)]
    for name in runs[0]["contestants"]:
        mean = np.mean([run["contestants"][name]["ndcg@100"][0] for run in runs])
        print(f"{name}: NDCG@100 {mean:.4f}")
    record = {"experiment": "cold items", "method": method, "users": USERS, "runs": runs}
    write_json(out, record | {"provenance": provenance("cpu")})


if __name__ == "__main__":
    typer.run(main)
