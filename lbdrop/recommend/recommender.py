r"""One recommender for every method: fit to a dataframe, recommend to known or new users, explain, save and load.

    model = Recommender().fit(interactions)  # user_id, item_id [, weight, datetime]
    model.recommend(users, k=20)  # user_id, item_id, score, rank [, uncertainty]

Results are dataframes of the caller's library. A pair of user and item is a like or not; with weights, ``at_least`` decides.
``datetime`` is ignored. Nothing is drawn from the global random state; the seed decides.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from rich.console import Console
from scipy.sparse import csr_array

from lbdrop.errors import DropoutError
from lbdrop.metrics.ranking import top_items
from lbdrop.recommend import saving
from lbdrop.recommend.answer import score_files
from lbdrop.recommend.answer.diversity import diverse_items
from lbdrop.recommend.answer.explain import effect_columns, leave_one_out, through_experts
from lbdrop.recommend.answer.history_parts import data_identity
from lbdrop.recommend.answer.new_items import NewItems, learn_new_items, with_new_items
from lbdrop.recommend.answer.queries import FittedIds, Query, likes_of
from lbdrop.recommend.answer.ray_engine import get_engine
from lbdrop.recommend.answer.scoring import (
    Best,
    Scoring,
    best_items,
    popularity_scores,
    scoring,
    users_at_once,
    with_fallback,
)  # fmt: skip
from lbdrop.recommend.answer.tables import id_series, library_of, ranked_columns, to_frame
from lbdrop.recommend.data.interactions import Interactions
from lbdrop.recommend.data.rows import Rows
from lbdrop.recommend.fitting import fit_model
from lbdrop.recommend.linear.methods import Linear
from lbdrop.recommend.method_args import FitOptions, choose_method
from lbdrop.recommend.model.product import Product
from lbdrop.recommend.model.settings import Settings
from lbdrop.recommend.model.vae import VAE
from lbdrop.recommend.train import fit as training
from lbdrop.recommend.train.evaluate import Report, device_of, evaluate

__all__ = ["Recommender"]


class Recommender:
    """A recommender that chooses its method by itself, or one by the name of its method or the kind of its dropout.

    Args:
        method: by default a linear model and a network, both with learned dropout, as a product of experts ("experts"), or the
            linear model alone ("blend") where the network does not help validation users; ``reason_`` says in one line which,
            and why. Or one of these two; or a name of :data:`~lbdrop.recommend.model.settings.METHODS` ("sivae-lbd", "recvae",
            …) or of another linear method ("ease", "slim", "wmf", "ials", "popularity"); or whole :class:`Settings`.
        dropout: an autoencoder with "learned", "fixed", "none", "concrete" or "gaussian" dropout. With a method, this replaces
            the method's own. Learned rates then get ``mask_kl=1`` and ``samples=10``, other dropout gets no extra masks, mask
            KL and samples, unless the method or the call sets them.
        at_least: the smallest weight of a like; without it every positive weight is a like.
        validation: users held out to choose the best epoch and when to stop: a share, of at most 10,000 users, or a number.
            With 0 all epochs are trained. Linear models learn rates from them, and then their weights from all users.
        patience: epochs without a better validation NDCG@100 before training stops; ``None`` trains all epochs.
        budget: seconds that the default, or "experts", may take: the network gets as many epochs as fit in, or is left out.
        seed: draws weights, order, masks and the validation users. The same seed gives the same model on a CPU; SLIM
            in several threads only to about 3e-4, see :mod:`lbdrop.recommend.linear.methods`.
        device: a GPU if there is one.
        progress: show a bar.
        settings: any field of :class:`Settings`, or an argument of the linear method: ``hidden=200``,
            ``regularisation=300``. Without a method they are of the network of the experts. Other settings are reduced for
            small data, see :mod:`lbdrop.recommend.method_args`.

    After :meth:`fit`: ``model_`` (the :class:`VAE`, linear model or :class:`Product`), ``settings_``, ``items_``, ``likes_``
    (users of each item), ``interactions_`` (the users' histories), ``history_`` (training, epoch by epoch), ``reason_``.

    Example:
        >>> from lbdrop.recommend.data.shop import generate_shop
        >>> shop = generate_shop(users=300, items=60, groups=4)
        >>> model = Recommender("ease").fit(shop.interactions)
        >>> model.recommend([0, 1], k=3).columns
        ['user_id', 'item_id', 'score', 'rank']
    """

    model_: VAE | Linear | Product
    items_: pl.Series
    likes_: np.ndarray

    def __init__(
        self,
        method: str | Settings | None = None,
        *,
        dropout: str | None = None,
        at_least: float | None = None,
        validation: float | int = 0.1,
        patience: int | None = 10,
        budget: float | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        progress: bool = True,
        **settings: Any,
    ):
        self.requested = self.choice = choose_method(method, dropout, settings)
        self.options = FitOptions.checked(self.choice, at_least, validation, patience, budget, seed)
        self.at_least, self.seed = self.options.at_least, self.options.seed
        self.device, self.progress = device, progress
        self.reason_: str | None = None
        self.settings_: Settings | None = None
        self.history_: training.History | None = None
        self.interactions_: Interactions | None = None
        self.new_items_: NewItems | None = None
        self.library = "polars"

    def __repr__(self) -> str:
        if not hasattr(self, "model_"):
            return f"Recommender({self.choice.method!r}, not fitted)"
        users = f"{len(self.interactions_.users):,} users × " if self.interactions_ is not None else ""
        return f"Recommender({self.choice.method!r}, {users}{len(self.items_):,} items)"

    # -------------------------------------------------------------------------------------------------------- learning

    def fit(
        self, interactions: Any, *, item_features: Any = None, checkpoints: str | Path | None = None
    ) -> "Recommender":
        """Learn from a dataframe with ``user_id`` and ``item_id``, or from :class:`Interactions`; a second call starts anew.

        If fewer than 20 validation users have five items, fit warns and trains on all users for all epochs.

        Args:
            interactions: a row for each pair of user and item.
            item_features: a dataframe with ``item_id`` and columns of categories, tags, numbers or embeddings. Items of it that
                nobody has are recommended too; see :mod:`lbdrop.recommend.answer.new_items`.
            checkpoints: folder for the state after each epoch. A run of the same data and settings continues where it
                stopped, bit for bit on a CPU; the state of another run is an error. Linear methods write none.
        """
        data, library = likes_of(interactions, self.at_least)
        found = fit_model(
            data, self.requested, validation=self.options.validation, seed=self.seed, device=self.device,
            budget=self.options.budget, patience=self.options.patience, progress=self.progress,
            checkpoints=None if checkpoints is None else Path(checkpoints),
            identity=None if checkpoints is None else data_identity(data) | {"validation": self.options.validation},
        )  # fmt: skip
        self.model_, self.settings_, self.history_ = found.model, found.settings, found.history
        self.choice, self.reason_ = found.choice, found.reason
        if self.progress and found.reason is not None:
            Console(stderr=True, highlight=False).print(f"{self.choice.method}: {found.reason}", soft_wrap=True)
        self.interactions_, self.items_, self.library = data, data.items, library
        self.likes_ = np.bincount(data.rows.indices, minlength=len(data.items)).astype(np.float32)
        self.new_items_ = None
        if item_features is not None:
            device = device_of(self.model_)
            scored = scoring(self.model_, self.samples(spread=False), self.seed)
            self.new_items_ = learn_new_items(item_features, data, scored, device, self.seed)
        return self

    def add_items(self, item_features: Any) -> "Recommender":
        """Recommend these new items from now on, in place of earlier new ones; nothing is fitted.

        Args:
            item_features: a dataframe with ``item_id`` and the columns of :meth:`fit`'s; items of fit in it stay as they are.
        """
        fitted = self.fitted_ids()
        if self.new_items_ is None:
            raise DropoutError(
                "add_items: want a model fitted with item_features=, got one without; fit it again with them"
            )
        self.new_items_ = self.new_items_.replaced(item_features, fitted.items)
        return self

    @property
    def catalogue_(self) -> pl.Series:
        """The ids of all items that can be recommended: those of fit, then the new ones."""
        return self.items_ if self.new_items_ is None else pl.concat([self.items_, self.new_items_.ids])

    # ---------------------------------------------------------------------------------------------------- recommending

    def recommend(
        self,
        users: Any = None,
        k: int = 20,
        *,
        filter_viewed: bool = True,
        items_to_recommend: Any = None,
        items_to_exclude: Any = None,
        diversity: float = 0.0,
        samples: int | None = None,
    ) -> Any:
        """The k best items of each user: ``user_id``, ``item_id``, ``score``, ``rank`` and, with masks, ``uncertainty``.

        A score is the log probability of the item, or the score of a linear method. Uncertainty is the standard deviation of
        the log probability over masks, of both experts where there are two. A user without known items gets the most popular
        items, scored by the logarithm of their share of all likes, without uncertainty.

        Args:
            users: ids of users in :meth:`fit`, by default all; or a dataframe of histories of other users (``user_id``,
                ``item_id``), whose unknown items are ignored.
            k: items for each user; fewer if the catalogue has no more.
            filter_viewed: leave out items that the user has.
            items_to_recommend: ids to choose from, also as a dataframe with ``item_id``; unknown ids are ignored.
            items_to_exclude: ids never to recommend, likewise.
            diversity: from 0, the best scores, to 1, the items least alike; see :mod:`lbdrop.recommend.answer.diversity`.
            samples: masks to average, 0 for none; the default is the method's. Uncertainty needs two or more.
        """
        selected = self.fitted_ids().users(users)
        query = self.fitted_ids().query(
            self.catalogue_, k, filter_viewed, items_to_recommend, items_to_exclude, diversity, self.samples(samples)
        )
        best = Best.cat(list(self.best(selected.rows, query)))
        return to_frame(ranked_columns(best, selected.ids, self.catalogue_, query.samples > 1), selected.library)

    def score_to(
        self,
        path: str | Path,
        users: Any = None,
        k: int = 20,
        *,
        filter_viewed: bool = True,
        items_to_recommend: Any = None,
        items_to_exclude: Any = None,
        diversity: float = 0.0,
        samples: int | None = None,
        batch: int | None = None,
        engine: str = "local",
        address: str | None = None,
    ) -> int:
        """As :meth:`recommend`, but to Parquet, in memory that does not grow with the users. Returns the number of rows.

        Finished parts stay in a folder beside ``path`` until all are done, and the same call continues from there. See
        :mod:`lbdrop.recommend.answer.score_files`.

        Args:
            path: one file if the name ends in .parquet, a folder of parts otherwise; replaced when the new one is complete.
            users: as for :meth:`recommend`, like the other arguments. Only a part of a polars LazyFrame is in memory at a time.
            batch: users scored at once; the default depends on the size of the catalogue.
            engine: "local", or "ray" for the machines of a cluster, which all have ``path``.
            address: of the Ray cluster; the default is a cluster that Ray finds, or else this machine.
        """
        query = self.fitted_ids().query(
            self.catalogue_, k, filter_viewed, items_to_recommend, items_to_exclude, diversity, self.samples(samples), batch
        )  # fmt: skip
        return score_files.score_to(self, Path(path), users, query, get_engine(engine, address), self.progress)

    def similar_items(self, items: Any, k: int = 10) -> Any:
        """The k items most like each of these: ``item_id``, ``similar_item_id``, ``score``, ``rank``.

        Scores are cosines of the items' vectors; for EASE, EDLAE and SLIM the weight of one item in the score of the other.
        """
        fitted, ids = self.fitted_ids(), id_series(items, "items")
        indices = torch.from_numpy(fitted.item_indices(ids))
        scores = self.model_.similarity(indices.to(device_of(self.model_))).float().cpu()
        best = top_items(scores, (torch.arange(len(ids)), indices), k)
        found = Best(best, scores.gather(1, best.clamp(min=0)), None)
        columns = ranked_columns(found, ids, self.items_, spread=False, names=("item_id", "similar_item_id"))
        return to_frame(columns, library_of(items) or self.library)

    def explain(self, user_or_history: Any, item: Any, *, samples: int | None = None) -> Any:
        """Which of the user's items support this one: ``item_id``, ``effect``, ``share``, the strongest support first.

        The effect of an item is how far the score (a log probability, or the score of a linear method) falls without it; it
        is negative if the score rises. Shares are of the sum of all absolute effects. Of two experts, the effect is also told
        apart: ``through_linear``, ``through_network``.

        Args:
            user_or_history: the id of a user of :meth:`fit`; or a history, as a dataframe with ``item_id`` or a list of items.
            item: the id of the item to explain.
            samples: masks to average, the same for every shortened history; the default is the method's.
        """
        fitted = self.fitted_ids()
        history, library = fitted.history(user_or_history)
        ids = id_series(item, "item")
        if len(ids) != 1:
            raise DropoutError(f"item: want one, got {len(ids):,}; call explain for each")
        (target,) = fitted._replace(items=self.catalogue_).item_indices(ids)
        device, experts = device_of(self.model_), {}
        if isinstance(self.model_, Product) and target < len(self.items_):
            through = through_experts(self.model_, history, int(target), device).numpy()
            effect, experts = through.sum(1), {"through_linear": through[:, 0], "through_network": through[:, 1]}
        else:
            scored = with_new_items(scoring(self.model_, self.samples(samples), self.seed), self.new_items_)
            effect = leave_one_out(scored, history, int(target), len(self.items_), device).numpy()
        columns = effect_columns(self.items_.gather(history), effect, experts)
        return to_frame(columns, library)

    def rates(self) -> Any:
        """The drop rate of every item and how many users have it: ``item_id``, ``rate``, ``likes``.

        Of two experts, each has a column: ``rate_linear``, ``rate_network``.
        """
        self.fitted_ids()  # an error before fit
        columns: dict[str, pl.Series] = {"item_id": self.items_}
        for name, rate in self.model_.drop_rates().items():
            columns[name] = pl.Series(rate.cpu().expand(len(self.items_)).numpy().copy())
        columns["likes"] = pl.Series(self.likes_)
        return to_frame(columns, self.library)

    def evaluate(self, held_out: Any, *, samples: int | None = None, **measures: Any) -> Report:
        """Recall and NDCG on held-out users, see :func:`lbdrop.recommend.evaluate`.

        Args:
            held_out: a :class:`HeldOut` on this model's items; or a dataframe or :class:`Interactions`. For users of
                :meth:`fit` the held-out items are those they did not have then; of other users with five items a fifth is
                held out: the newest if there is a column ``datetime``, any otherwise.
            samples: masks to average; the default is the method's.
            measures: ``recall`` and ``ndcg``, tuples of k.
        """
        held, unknown = self.fitted_ids().held_out(held_out, self.seed % 2**32)
        scored = self._scored(self.samples(samples, spread=False))
        report = evaluate(
            lambda batch: scored(batch).scores, held, likes=torch.from_numpy(self.likes_), device=device_of(self.model_),
            batch=users_at_once(len(self.items_)), **measures,
        )  # fmt: skip
        return replace(report, kinds=self.fitted_ids().kinds(held, unknown))

    # --------------------------------------------------------------------------------------------------------- keeping

    def save(self, folder: str | Path, *, histories: bool = True) -> None:
        """Write the model to a folder; see :mod:`lbdrop.recommend.saving`.

        Args:
            folder: made if necessary; replaces a saved model.
            histories: save what each user has, so that :meth:`recommend` takes ids of users. Without, it needs their histories,
                and the folder has no data of any user.
        """
        self.fitted_ids()  # an error before fit
        saving.write(Path(folder), self.saved(self.interactions_ if histories else None))

    def saved(self, interactions: Interactions | None) -> saving.Saved:
        """The content of this model's folder, with these histories."""
        header = {
            **saving.method_record(self.choice, self.settings_, self.history_), "seed": self.seed,
            "at_least": self.at_least, "library": self.library, "items": len(self.items_),
            "users": None if interactions is None else len(interactions.users),
        }  # fmt: skip
        return saving.Saved(header, self.state(), self.items_, self.likes_, interactions, self.new_items_)

    def state(self) -> dict[str, torch.Tensor]:
        """The learned tensors by name."""
        if isinstance(self.model_, Product):
            return self.model_.tensors()
        return self.model_.state if isinstance(self.model_, Linear) else self.model_.state_dict()

    @classmethod
    def load(cls, folder: str | Path, *, device: torch.device | str | None = None) -> "Recommender":
        """Read back what :meth:`save` wrote; the loaded model gives the same bits."""
        place = Path(folder)
        saved = saving.read(place)
        header = saved.header
        new = cls(seed=header["seed"], at_least=header["at_least"], device=device)
        new.choice, new.history_ = saving.method_of(place, header)
        new.requested, new.settings_, new.library = new.choice, new.choice.settings, header["library"]
        new.model_ = saving.rebuild(place, saved, new.choice, device)
        new.items_, new.likes_, new.interactions_ = saved.items, saved.likes, saved.interactions
        new.new_items_ = None if saved.new_items is None else saved.new_items.to(device_of(new.model_))
        return new

    # ---------------------------------------------------------------------------------------------------------- pieces

    def fitted_ids(self) -> FittedIds:
        """Ids and histories of fit; an error before fit."""
        if not hasattr(self, "model_"):
            raise DropoutError("this recommender is not fitted; call fit(interactions) first")
        return FittedIds(self.items_, self.interactions_, self.at_least, self.library)

    def samples(self, samples: int | None = None, spread: bool = True) -> int:
        """The number of masks to average; 0 for a model without masks, or, without ``spread``, whose scores need none."""
        if samples is not None and samples < 0:
            raise DropoutError(f"samples: want 0 (no masks) or more, got {samples}")
        if self.settings_ is None or self.settings_.dropout == "none" or not (spread or self.model_.averages_masks):
            return 0
        return self.settings_.samples if samples is None else samples

    def _scored(self, samples: int) -> Scoring:
        """Scores of the items of fit."""
        popular = popularity_scores(self.likes_).to(device_of(self.model_))
        return with_fallback(scoring(self.model_, samples, self.seed), popular)

    def best(self, rows: csr_array, query: Query) -> Iterator[Best]:
        """The best items of these rows, one batch at a time."""
        device, allowed = device_of(self.model_), query.allowed(len(self.catalogue_))
        diverse = partial(diverse_items, self.model_, diversity=query.diversity, fitted=len(self.items_))
        with torch.no_grad():
            yield from best_items(
                with_new_items(self._scored(query.samples), self.new_items_), Rows.from_csr(rows, device), query.k,
                filter_viewed=query.filter_viewed, allowed=None if allowed is None else allowed.to(device),
                batch=query.batch, choose=diverse if query.diversity else top_items,
            )  # fmt: skip
