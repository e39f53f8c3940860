r"""One recommender for every method: fit to a dataframe, recommend to users seen or unseen, explain, save and load.

    model = Recommender(dropout="learned").fit(interactions)  # user_id, item_id [, weight, datetime]
    model.recommend(users, k=20)  # user_id, item_id, score, rank [, uncertainty]

Tables come back in the library they came in. A pair of user and item either is a like or is not: weights decide with
``at_least`` which, and ``datetime`` is left aside. Nothing is drawn from the global random state; the seed decides.
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from scipy.sparse import csr_array

from lbdrop.errors import DropoutError
from lbdrop.io.records import provenance
from lbdrop.metrics.ranking import top_items
from lbdrop.recommend import saving, score_files, train
from lbdrop.recommend.checkpoints import fingerprint
from lbdrop.recommend.evaluate import Report, device_of, evaluate
from lbdrop.recommend.explain import leave_one_out
from lbdrop.recommend.frames import positions
from lbdrop.recommend.history_parts import of_ids
from lbdrop.recommend.interactions import Interactions
from lbdrop.recommend.linear import LINEAR, Linear
from lbdrop.recommend.method_args import checked_settings, choose, to_size
from lbdrop.recommend.number_checks import check_number, plain
from lbdrop.recommend.queries import Known, Question, likes_of
from lbdrop.recommend.ray_engine import engine_named
from lbdrop.recommend.rows import Rows
from lbdrop.recommend.scoring import Best, Scoring, best_items, popularity, scoring, users_at_once, with_fallback
from lbdrop.recommend.settings import Settings
from lbdrop.recommend.similarity import similarity
from lbdrop.recommend.splits import HeldOut
from lbdrop.recommend.tables import as_list, library_of, ranked, table
from lbdrop.recommend.vae import VAE
from lbdrop.recommend.validation import hold_out

__all__ = ["Recommender"]


class Recommender:
    """A recommender by the name of its method, or by the kind of its dropout.

    Args:
        method: a name of :data:`~lbdrop.recommend.settings.METHODS` ("sivae-lbd", "recvae", …) or of a linear method
            ("ease", "slim", "wmf", "ials", "popularity"), or whole :class:`Settings`.
        dropout: "learned" (also if nothing is said), "fixed", "none", "concrete" or "gaussian". With a method, this in place
            of its own: rates to learn come with ``mask_kl=1`` and ``samples=10``, the others without extra masks, mask KL
            and samples, unless told or the method has them.
        at_least: the weight from which an interaction is a like; without it every positive weight is.
        validation: users held out to tell when to stop: a share, of at most 10,000 users, or a number; 0 for none, and
            then all epochs are trained. The last epochs are undone if an earlier one was better.
        patience: epochs without a better validation NDCG@100 before training stops; ``None`` trains all epochs.
        seed: draws weights, order, masks and the validation users. The same seed gives the same model on a CPU; SLIM and
            iALS in several threads only to about 3e-4 and 1e-5, see :mod:`lbdrop.recommend.linear`.
        device: a GPU if there is one.
        progress: show a bar.
        settings: any field of :class:`Settings`, or an argument of the linear method: ``hidden=200``,
            ``regularisation=300``. Those not given follow the size of small data, see :mod:`lbdrop.recommend.method_args`.

    After :meth:`fit`: ``model_`` (the :class:`VAE` or linear model), ``settings_``, ``items_``, ``likes_`` (users of each
    item), ``interactions_`` (the users' histories), ``history_`` (training, epoch by epoch).

    Example:
        >>> from lbdrop.recommend.shop import generate_shop
        >>> shop = generate_shop(users=300, items=60, groups=4)
        >>> model = Recommender("ease").fit(shop.interactions)
        >>> model.recommend([0, 1], k=3).columns
        ['user_id', 'item_id', 'score', 'rank']
    """

    model_: VAE | Linear
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
        seed: int = 0,
        device: torch.device | str | None = None,
        progress: bool = True,
        **settings: Any,
    ):
        self.choice = choose(method, dropout, settings)
        at_least, validation, patience, seed = map(plain, (at_least, validation, patience, seed))
        check_number("validation", validation, least=0)
        if isinstance(validation, float) and validation >= 1:
            raise DropoutError(f"validation: want a share below 1 or a number of users, got {validation}")
        check_number("seed", seed, whole=True, least=0, most=2**63 - 1)
        if at_least is not None:
            check_number("at_least", at_least)
        if patience is not None:
            check_number("patience", patience, whole=True, least=1)
        self.at_least, self.validation, self.patience = at_least, validation, patience
        self.seed, self.device, self.progress = seed, device, progress
        self.settings_: Settings | None = None
        self.history_: train.History | None = None
        self.interactions_: Interactions | None = None
        self.library = "polars"

    def __repr__(self) -> str:
        if not hasattr(self, "model_"):
            return f"Recommender({self.choice.method!r}, not fitted)"
        known = f"{len(self.interactions_.users):,} users × " if self.interactions_ is not None else ""
        return f"Recommender({self.choice.method!r}, {known}{len(self.items_):,} items)"

    # -------------------------------------------------------------------------------------------------------- learning

    def fit(self, interactions: Any, *, checkpoints: str | Path | None = None) -> "Recommender":
        """Learn from a dataframe with ``user_id`` and ``item_id``, or from :class:`Interactions`; a second call starts anew.

        Where too few users have five items, fewer than 20 could be held out to stop by. Then, with a warning, all users are
        trained on for all epochs.

        Args:
            interactions: who had what.
            checkpoints: folder for the state after each epoch. A run of the same data and settings that is found there is
                taken up where it stopped, bit for bit on a CPU; another one's is an error. Linear methods keep none.
        """
        if isinstance(interactions, Interactions):
            data, library = interactions, "polars"
            if self.at_least is not None:
                raise DropoutError("at_least: want a dataframe, got Interactions; pass it to Interactions.from_frame")
        else:
            data = Interactions.from_frame(interactions, at_least=self.at_least)
            library = library_of(interactions) or "polars"
        data = likes_of(data)
        settings, history = None, None
        if self.choice.settings is None:
            model: VAE | Linear = self.choice.linear(self.seed, self.device).fit(data.rows)
            # As they will be read back: sums then run over them in the same order.
            model.restore({name: tensor.contiguous() for name, tensor in model.state.items()})
        else:
            trained, held = hold_out(data, self.validation, self.seed)
            settings = to_size(self.choice.settings, self.choice.told, len(trained.users), len(data.items))
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                model = VAE(len(data.items), settings, users=len(trained.users))
            history = train.fit(
                model, trained.rows, held, device=self.device, seed=self.seed, patience=self.patience, progress=self.progress,
                checkpoints=None if checkpoints is None else Path(checkpoints),
                identity=None if checkpoints is None else self._identity(data),
            )  # fmt: skip
        self.model_, self.settings_, self.history_ = model, settings, history
        self.interactions_, self.items_, self.library = data, data.items, library
        self.likes_ = np.bincount(data.rows.indices, minlength=len(data.items)).astype(np.float32)
        return self

    def _identity(self, data: Interactions) -> dict[str, Any]:
        return {
            "interactions": fingerprint(data.rows.indptr, data.rows.indices),
            "ids": [of_ids(data.users), of_ids(data.items)],
            "validation": self.validation,
        }

    # ---------------------------------------------------------------------------------------------------- recommending

    def recommend(
        self,
        users: Any = None,
        k: int = 20,
        *,
        filter_viewed: bool = True,
        items_to_recommend: Any = None,
        samples: int | None = None,
    ) -> Any:
        """The k best items of each user: ``user_id``, ``item_id``, ``score``, ``rank`` and, with masks, ``uncertainty``.

        A score is the log probability of the item, or whatever a linear method gives. Uncertainty is the standard deviation
        of the log probability over masks. A user without a known item gets the most popular ones, scored by the logarithm
        of their share of all likes, and no uncertainty.

        Args:
            users: ids of users who were there in :meth:`fit`, all of them if left out; or a dataframe of histories of users
                who were not (``user_id``, ``item_id``), whose unknown items are ignored.
            k: items a user; fewer where the catalogue has no more.
            filter_viewed: leave out what the user has.
            items_to_recommend: ids to choose from, also as a dataframe with ``item_id``; those the model does not know are
                ignored.
            samples: masks to average, 0 for none; the method's number unless told. From two on there is uncertainty.
        """
        asked, question = self.known().users(users), self._question(k, filter_viewed, items_to_recommend, samples)
        parts = list(self.best(asked.rows, question))
        best = Best(
            torch.cat([each.item for each in parts]),
            torch.cat([each.score for each in parts]),
            None if parts[0].spread is None else torch.cat([each.spread for each in parts if each.spread is not None]),
        )
        return table(ranked(best, asked.ids, self.items_, question.samples > 1), asked.library)

    def score_to(
        self,
        path: str | Path,
        users: Any = None,
        k: int = 20,
        *,
        filter_viewed: bool = True,
        items_to_recommend: Any = None,
        samples: int | None = None,
        batch: int | None = None,
        engine: str = "local",
        address: str | None = None,
    ) -> int:
        """As :meth:`recommend`, straight to Parquet; memory does not grow with the users. Returns the number of rows.

        What is done stays in a folder beside ``path`` until all is, and the same call goes on from there. See
        :mod:`lbdrop.recommend.score_files`.

        Args:
            path: one file if the name ends in .parquet, a folder of parts otherwise; replaced when the new one is whole.
            users: as for :meth:`recommend`, like the other arguments. Of a polars LazyFrame a part at a time is in memory.
            batch: users scored at once; by the size of the catalogue unless told.
            engine: "local", or "ray" for the machines of a cluster, which all see ``path``.
            address: of the Ray cluster; one that is found, or this machine, unless told.
        """
        question = self._question(k, filter_viewed, items_to_recommend, samples, batch)
        return score_files.score_to(self, Path(path), users, question, engine_named(engine, address), self.progress)

    def similar_items(self, items: Any, k: int = 10) -> Any:
        """The k items most like each of these: ``item_id``, ``similar_item_id``, ``score``, ``rank``.

        Scores are cosines of the items' vectors; for EASE and SLIM the weight with which the one speaks for the other.
        """
        known, ids = self.known(), as_list(items, "items")
        numbers = torch.from_numpy(known.item_numbers(ids))
        scores = similarity(self.model_, numbers).float().cpu()
        best = top_items(scores, (torch.arange(len(ids)), numbers), k)
        found = ranked(Best(best, scores.gather(1, best.clamp(min=0)), None), ids, self.items_, spread=False)
        names = {"user_id": "item_id", "item_id": "similar_item_id"}
        return table(
            {names.get(name, name): column for name, column in found.items()}, library_of(items) or self.library
        )

    def explain(self, user_or_history: Any, item: Any, *, samples: int | None = None) -> Any:
        """Which of the user's items carry this one: ``item_id``, ``effect``, ``share``, the strongest support first.

        The effect of an item is how much the score (a log probability, or what a linear method gives) falls without it;
        below 0 it speaks against. Shares are of the sum of all effects' sizes.

        Args:
            user_or_history: the id of a user of :meth:`fit`; or a history, as a dataframe with ``item_id`` or a list of items.
            item: the id of the item in question.
            samples: masks to average, the same for every shortened history; the method's number unless told.
        """
        known = self.known()
        history, library = known.history(user_or_history)
        asked = as_list(item, "item")
        if len(asked) != 1:
            raise DropoutError(f"item: want one, got {len(asked):,}; ask about one after the other")
        (target,) = known.item_numbers(asked)
        scored = scoring(self.model_, self.samples(samples), self.seed)
        effect = leave_one_out(scored, history, int(target), len(self.items_), device_of(self.model_)).numpy()
        order = np.argsort(-effect, kind="stable")
        total = np.abs(effect).sum()
        columns = {
            "item_id": self.items_.gather(history[order]),
            "effect": pl.Series(effect[order]),
            "share": pl.Series(np.abs(effect[order]) / (total if total > 0 else 1.0)),
        }
        return table(columns, library)

    def rates(self) -> Any:
        """The drop rate of every item and how many users have it: ``item_id``, ``rate``, ``likes``."""
        self.known()
        if isinstance(self.model_, Linear):
            raise DropoutError(f"rates: want a method with masks, got {self.choice.method!r}")
        rate = (1 - self.model_.keep).cpu().expand(len(self.items_)).numpy()
        columns = {"item_id": self.items_, "rate": pl.Series(rate.copy()), "likes": pl.Series(self.likes_)}
        return table(columns, self.library)

    def evaluate(self, held_out: Any, *, samples: int | None = None, **measures: Any) -> Report:
        """Recall and NDCG of what held-out users like, see :func:`lbdrop.recommend.evaluate`.

        Args:
            held_out: a :class:`HeldOut` on this model's items; or a dataframe or :class:`Interactions`. Of these, users that
                :meth:`fit` saw are asked for the items they did not have then; of other users with five items a fifth is held
                out.
            samples: masks to average; the method's number unless told.
            measures: ``recall`` and ``ndcg``, tuples of k.
        """
        known = self.known()
        held = held_out if isinstance(held_out, HeldOut) else known.held_out(held_out, self.seed % 2**32)
        if held.fold_in.shape != (shape := (len(held.users), len(self.items_))):
            raise DropoutError(
                f"held_out: want rows of shape {shape}, on this model's items, got {held.fold_in.shape}; pass a dataframe"
            )
        if not held.scored:
            raise DropoutError(
                f"held_out: want users with items to find, got none among {len(held.users):,}; new users need five known"
                " items, known ones an item they did not have"
            )
        scored = self._scored(self.samples(samples))
        return evaluate(
            lambda batch: scored(batch).scores, held, likes=torch.from_numpy(self.likes_), device=device_of(self.model_),
            batch=users_at_once(len(self.items_)), **measures,
        )  # fmt: skip

    # --------------------------------------------------------------------------------------------------------- keeping

    def save(self, folder: str | Path, *, histories: bool = True) -> None:
        """Write the model to a folder of its own; see :mod:`lbdrop.recommend.saving`.

        Args:
            folder: made if need be; a model that is there is replaced.
            histories: keep what each user has, so that :meth:`recommend` knows users by their ids. Without, users come with
                their histories, and the folder tells nothing about any of them.
        """
        self.known()  # only what was fitted
        saving.write(Path(folder), self.saved(self.interactions_ if histories else None))

    def saved(self, kept: Interactions | None) -> saving.Saved:
        """All that is written of this model, with the histories of these users."""
        settings = self.choice.options if self.settings_ is None else asdict(self.settings_)
        header = {
            "method": self.choice.method, "settings": settings, "seed": self.seed, "at_least": self.at_least,
            "library": self.library, "items": len(self.items_), "users": None if kept is None else len(kept.users),
            "history": None if self.history_ is None else asdict(self.history_), "provenance": provenance(),
        }  # fmt: skip
        return saving.Saved(header, self.state(), self.items_, self.likes_, kept)

    def state(self) -> dict[str, torch.Tensor]:
        """What was learned."""
        return self.model_.state if isinstance(self.model_, Linear) else self.model_.state_dict()

    @classmethod
    def load(cls, folder: str | Path, *, device: torch.device | str | None = None) -> "Recommender":
        """Read back what :meth:`save` wrote; the loaded model recommends the same, to the last bit."""
        place = Path(folder)
        saved = saving.read(place)
        header = saved.header
        try:
            new = cls(seed=header["seed"], at_least=header["at_least"], device=device)
            if header["method"] in LINEAR:
                new.choice = choose(header["method"], None, header["settings"])
            else:
                new.choice = choose(checked_settings(header["settings"]), None, {})
                new.settings_, new.history_ = new.choice.settings, train.History(**header["history"])
        except (DropoutError, TypeError) as error:
            raise DropoutError(f"{place / saving.HEADER}: {error}") from error
        new.model_ = saving.rebuild(place, saved, new.choice, device)
        new.library = header["library"]
        new.items_, new.likes_, new.interactions_ = saved.items, saved.likes, saved.interactions
        return new

    # ---------------------------------------------------------------------------------------------------------- pieces

    def known(self) -> Known:
        if not hasattr(self, "model_"):
            raise DropoutError("this recommender has learned nothing yet; call fit(interactions) first")
        return Known(self.items_, self.interactions_, self.at_least, self.library)

    def samples(self, samples: int | None = None) -> int:
        """How many masks: 0 where the model has none."""
        if samples is not None and samples < 0:
            raise DropoutError(f"samples: want 0 (no masks) or more, got {samples}")
        if self.settings_ is None or self.settings_.dropout == "none":
            return 0
        return self.settings_.samples if samples is None else samples

    def _scored(self, samples: int) -> Scoring:
        return with_fallback(
            scoring(self.model_, samples, self.seed), popularity(self.likes_).to(device_of(self.model_))
        )

    def _question(
        self, k: int, filter_viewed: bool, chosen: Any, samples: int | None, batch: int | None = None
    ) -> Question:
        items = None
        if chosen is not None:
            numbers = positions(as_list(chosen, "items_to_recommend"), self.items_, "items_to_recommend")
            if not (numbers >= 0).any():
                raise DropoutError(f"items_to_recommend: want items of fit, got none among {len(numbers):,}")
            items = tuple(np.unique(numbers[numbers >= 0]).tolist())
        return Question(k, filter_viewed, items, self.samples(samples), batch)

    def best(self, rows: csr_array, question: Question) -> Iterator[Best]:
        """The best items of these rows, a batch at a time."""
        device, allowed = device_of(self.model_), None
        if question.items is not None:
            allowed = torch.zeros(len(self.items_), dtype=torch.bool)
            allowed[list(question.items)] = True
            allowed = allowed.to(device)
        with torch.no_grad():
            yield from best_items(
                self._scored(question.samples), Rows.from_csr(rows, device), question.k,
                filter_viewed=question.filter_viewed, allowed=allowed, batch=question.batch,
            )  # fmt: skip
