"""Libraries of recommenders, each as a function from a sparse matrix to a function from users to ranked items.

Defaults throughout, but for what a library has no default for. Items that a user has are never in a ranking; −1 fills it.
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

__all__ = ["CONTESTANTS", "Contestant"]

Ranker = Callable[[np.ndarray, int], np.ndarray]
"""From rows of users and k to (users, k) items, the best first."""
Fit = Callable[[csr_matrix, int], Ranker]


@dataclass(frozen=True)
class Contestant:
    """A method of a package; ``make`` imports it, so that memory and time are without the import."""

    package: str
    make: Callable[[], Fit]


def _best(scores: np.ndarray, rows: csr_matrix, k: int) -> np.ndarray:
    """The k best items of each row of scores without those of the row, for libraries that give scores alone."""
    scores = np.array(scores, np.float64)
    scores[rows.nonzero()] = -np.inf
    part = np.argpartition(-scores, min(k, scores.shape[1] - 1), axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(scores, part, 1), axis=1, kind="stable")
    best = np.take_along_axis(part, order, 1)
    return np.where(np.isfinite(np.take_along_axis(scores, best, 1)), best, -1)


def _from_pairs(users: np.ndarray, user: np.ndarray, item: np.ndarray, k: int) -> np.ndarray:
    """Rows (user, item), the best first for each user, as a table."""
    ranked = np.full((len(users), k), -1)
    row = np.searchsorted(users, user)
    order = np.argsort(row, kind="stable")
    row, item = row[order], item[order]
    place = np.arange(len(row)) - np.searchsorted(row, row)
    ranked[row[place < k], place[place < k]] = item[place < k]
    return ranked


def _frame(train: csr_matrix, **more: Any) -> Any:
    import pandas as pd

    rows = train.tocoo()
    return pd.DataFrame({"user_id": rows.row, "item_id": rows.col, **more})


# ------------------------------------------------------------------------------------------------------------- ours


def ours(*method: str, **settings: Any) -> Callable[[], Fit]:
    """Ours, through the same dataframes that users pass."""

    def make() -> Fit:
        import polars as pl

        from lbdrop.recommend import Recommender

        def fit(train: Any, seed: int) -> Ranker:
            rows = train.tocoo()
            frame = pl.DataFrame({"user_id": rows.row, "item_id": rows.col})
            model = Recommender(*method, seed=seed, device="cpu", progress=False, **settings).fit(frame)

            def ranked(users: np.ndarray, k: int) -> np.ndarray:
                best = model.recommend(users, k)
                return _from_pairs(users, best["user_id"].to_numpy(), best["item_id"].to_numpy(), k)

            return ranked

        return fit

    return make


# ----------------------------------------------------------------------------------------------------------- others


def implicit(name: str) -> Callable[[], Fit]:
    def make() -> Fit:
        als, neighbours, pools = map(import_module, ("implicit.als", "implicit.nearest_neighbours", "threadpoolctl"))
        kind = {"ALS": als.AlternatingLeastSquares, "BM25": neighbours.BM25Recommender}[name]

        def fit(train: Any, seed: int) -> Ranker:
            with pools.threadpool_limits(1, "blas"):
                model = kind(num_threads=1, **({"random_state": seed} if name == "ALS" else {}))
                model.fit(train, show_progress=False)

            def ranked(users: np.ndarray, k: int) -> np.ndarray:
                items, scores = model.recommend(users, train[users], N=k)
                # Neighbours fill a list that is too short with items that the user has, at a score of 0.
                return items if name == "ALS" else np.where(scores > 0, items, -1)

            return ranked

        return fit

    return make


def irspack(name: str) -> Callable[[], Fit]:
    def make() -> Fit:
        package = import_module("irspack")

        def fit(train: Any, seed: int) -> Ranker:
            model = getattr(package, name)(train).learn()
            return lambda users, k: _best(model.get_score_remove_seen(users), train[users], k)

        return fit

    return make


def rectools(name: str) -> Callable[[], Fit]:
    def make() -> Fit:
        als, models, dataset = map(import_module, ("implicit.als", "rectools.models", "rectools.dataset"))

        def fit(train: Any, seed: int) -> Ranker:
            data = dataset.Dataset.construct(_frame(train, weight=1.0, datetime="2020-01-01"))
            wrapped = name == "ImplicitALSWrapperModel"
            model = getattr(models, name)(
                *([als.AlternatingLeastSquares(num_threads=1, random_state=seed)] if wrapped else [])
            )
            model.fit(data)

            def ranked(users: np.ndarray, k: int) -> np.ndarray:
                best = model.recommend(users, data, k, filter_viewed=True)
                return _from_pairs(users, best["user_id"].to_numpy(), best["item_id"].to_numpy(), k)

            return ranked

        return fit

    return make


def lenskit(module: str, name: str, **config: Any) -> Callable[[], Fit]:
    def make() -> Fit:
        batch, data_of, pipelines = map(import_module, ("lenskit.batch", "lenskit.data", "lenskit.pipeline"))
        scorer = getattr(import_module(f"lenskit.{module}"), name)

        def fit(train: Any, seed: int) -> Ranker:
            data = data_of.from_interactions_df(_frame(train))
            pipeline = pipelines.topn_pipeline(scorer(**config))
            pipeline.train(data)

            def ranked(users: np.ndarray, k: int) -> np.ndarray:
                best = batch.recommend(pipeline, users.tolist(), k, n_jobs=1).to_df()
                return _from_pairs(users, best["user_id"].to_numpy(), best["item_id"].to_numpy(), k)

            return ranked

        return fit

    return make


def cornac(name: str) -> Callable[[], Fit]:
    def make() -> Fit:
        models, dataset = map(import_module, ("cornac.models", "cornac.data"))

        def fit(train: Any, seed: int) -> Ranker:
            rows = train.tocoo()
            data = dataset.Dataset.from_uir(list(zip(rows.row, rows.col, rows.data, strict=True)), seed=seed)
            model = getattr(models, name)(verbose=False, seed=seed)
            model.fit(data)
            place = np.array([data.iid_map.get(item, -1) for item in range(train.shape[1])])

            def ranked(users: np.ndarray, k: int) -> np.ndarray:
                scores = np.stack([np.asarray(model.score(data.uid_map[user])).ravel() for user in users])
                return _best(np.where(place >= 0, scores[:, place], -np.inf), train[users], k)

            return ranked

        return fit

    return make


def recbole(name: str) -> Callable[[], Fit]:
    """RecBole reads files; a tenth of the likes validates, as in its own split, since it stops early by them."""

    def make() -> Fit:
        import torch

        for old, new in {"bool8": np.bool_, "float_": np.float64, "complex_": np.complex128, "unicode_": np.str_,
                         "object0": np.object_, "int0": np.intp}.items():  # fmt: skip
            if not hasattr(np, old):
                setattr(np, old, new)  # names of numpy 1, which RecBole 1.2 still says
        config_of, data_of, interaction, utils = map(
            import_module, ("recbole.config", "recbole.data", "recbole.data.interaction", "recbole.utils")
        )

        def fit(train: Any, seed: int) -> Ranker:
            folder = Path(tempfile.mkdtemp())
            (folder / "likes").mkdir()
            text = {"user_id": "user_id:token", "item_id": "item_id:token"}
            _frame(train).rename(columns=text).to_csv(folder / "likes" / "likes.inter", sep="\t", index=False)
            os.chdir(folder)  # it writes logs where it is
            settings = {
                "data_path": str(folder),
                "use_gpu": False,
                "seed": seed,
                "show_progress": False,
                "state": "ERROR",
                "checkpoint_dir": str(folder),
                "load_col": {"inter": ["user_id", "item_id"]},
                "eval_args": {"split": {"RS": [0.9, 0.1, 0.0]}, "order": "RO", "group_by": "user", "mode": "full"},
                # MultiVAE and RecVAE refuse sampled negatives, which are the default.
                "train_neg_sample_args": None,
            }
            config = config_of.Config(model=name, dataset="likes", config_dict=settings)
            utils.init_seed(seed, True)
            data = data_of.create_dataset(config)
            first, valid, _ = data_of.data_preparation(config, data)
            model = utils.get_model(name)(config, first.dataset)
            trainer = utils.get_trainer(config["MODEL_TYPE"], name)(config, model)
            trainer.fit(first, valid, saved=True, show_progress=False, verbose=False)
            state = torch.load(trainer.saved_model_file, weights_only=False)
            model.load_state_dict(state["state_dict"])
            model.load_other_parameter(state.get("other_parameter"))
            model.eval()
            item = np.array([data.field2token_id["item_id"].get(str(each), 0) for each in range(train.shape[1])])

            def ranked(users: np.ndarray, k: int) -> np.ndarray:
                number = torch.tensor([data.field2token_id["user_id"][str(user)] for user in users])
                with torch.no_grad():
                    scores = (
                        model.full_sort_predict(interaction.Interaction({"user_id": number}))
                        .view(len(users), -1)
                        .numpy()
                    )
                return _best(np.where(item > 0, scores[:, item], -np.inf), train[users], k)

            return ranked

        return fit

    return make


CONTESTANTS = {
    "lbdrop default": Contestant("lbdrop", ours()),
    "lbdrop edlae": Contestant("lbdrop", ours("edlae")),
    "lbdrop ease": Contestant("lbdrop", ours("ease")),
    "lbdrop popularity": Contestant("lbdrop", ours("popularity")),
    "RecTools EASE": Contestant("rectools", rectools("EASEModel")),
    "RecTools ALS": Contestant("rectools", rectools("ImplicitALSWrapperModel")),
    "implicit ALS": Contestant("implicit", implicit("ALS")),
    "implicit BM25": Contestant("implicit", implicit("BM25")),
    "irspack EASE": Contestant("irspack", irspack("DenseSLIMRecommender")),
    "irspack EDLAE": Contestant("irspack", irspack("EDLAERecommender")),
    "irspack iALS": Contestant("irspack", irspack("IALSRecommender")),
    "irspack RP3beta": Contestant("irspack", irspack("RP3betaRecommender")),
    "LensKit EASE": Contestant("lenskit", lenskit("knn", "EASEScorer")),
    "LensKit ALS": Contestant("lenskit", lenskit("als", "ImplicitMFScorer")),
    "LensKit ItemKNN": Contestant("lenskit", lenskit("knn", "ItemKNNScorer", feedback="implicit")),
    "Cornac EASE": Contestant("cornac", cornac("EASE")),
    "Cornac BPR": Contestant("cornac", cornac("BPR")),
    "Cornac VAECF": Contestant("cornac", cornac("VAECF")),
    "RecBole EASE": Contestant("recbole", recbole("EASE")),
    "RecBole MultiVAE": Contestant("recbole", recbole("MultiVAE")),
    "RecBole RecVAE": Contestant("recbole", recbole("RecVAE")),
}
"""Whom to measure; the first is who the others are compared with."""
