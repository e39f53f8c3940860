r"""What is asked of a recommender, and the answers to many such questions from one forward pass.

A question is about one history: its best items, or items that are named; with reasons, the history is also scored without
each of its items in turn, $e_j = s_i(x) - s_i(x \setminus j)$, in the same pass. Everything here goes by numbers, an item's
place in the catalogue; ids and titles are :mod:`lbdrop.serve.catalogue`'s.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lbdrop.metrics.ranking import top_items
from lbdrop.recommend.linear import Popularity
from lbdrop.recommend.model import Recommender
from lbdrop.recommend.scoring import popularity
from lbdrop.recommend.similarity import likeness
from lbdrop.serve.forward import Forward, Numbers, filling

__all__ = ["Answer", "Engine", "Question", "Similar"]


@dataclass(frozen=True, eq=False)
class Question:
    """About one history, the sorted numbers of its items."""

    history: Numbers
    k: int = 1
    """Best items to find."""
    filter_viewed: bool = True
    allowed: Numbers | None = None
    """Items to choose the best from; all of them if ``None``."""
    about: Numbers | None = None
    """Items asked about, instead of the best."""
    reasons: bool = False
    """How much each item of the history speaks for the items of the answer."""

    @property
    def rows(self) -> int:
        """Histories to score."""
        return 1 + len(self.history) * self.reasons

    def histories(self) -> list[Numbers]:
        missing = range(len(self.history)) if self.reasons else ()
        return [self.history, *(np.delete(self.history, each) for each in missing)]


@dataclass(frozen=True)
class Similar:
    """Which k items are most like this one?"""

    item: int
    k: int
    rows: int = 1


class Answer(NamedTuple):
    """Items by number, the best first, with their scores."""

    items: list[int]
    scores: list[float]
    spread: list[float] | None = None
    """The standard deviation of each log probability over masks, NaN for who has nothing."""
    effects: Float[np.ndarray, "history items"] | None = None
    """How much the score of each item falls without each item of the history, if asked for."""


class Engine:
    """A fitted recommender that answers in batches. Not for two threads at once."""

    def __init__(self, recommender: Recommender):
        self.model, self.forward = recommender.model_, Forward(recommender)
        self.popular = popularity(recommender.likes_).float().to(self.forward.device)
        self.compares = not isinstance(recommender.model_, Popularity)
        """Whether the method knows items apart, so that one can be more like an item than another."""

    def __call__(self, asked: Sequence[Question | Similar]) -> list[Answer]:
        """The answers in the order of the questions; each is what it would be alone."""
        questions = [each for each in asked if isinstance(each, Question)]
        alike = [each for each in asked if isinstance(each, Similar)]
        answers = iter(self._questions(questions) if questions else ())
        others = iter(self._similar(alike) if alike else ())
        return [next(answers if isinstance(each, Question) else others) for each in asked]

    def _questions(self, questions: Sequence[Question]) -> list[Answer]:
        scores, spread = self.forward([row for question in questions for row in question.histories()])
        whole = np.cumsum([0, *(question.rows for question in questions)])[:-1]
        place = torch.from_numpy(whole).to(scores.device)
        # Who has nothing gets the most popular. What is left of a history of one item is the model's to say: it is a reason.
        nothing = place[[not len(question.history) for question in questions]]
        scores[nothing] = self.popular
        if spread is not None:
            spread[nothing] = torch.nan
        chosen = self._chosen(questions, scores[place])
        answers = []
        for question, first, items in zip(questions, whole, chosen, strict=True):
            score = scores[first, items]
            effects = None
            if question.reasons:
                without = scores[first + 1 : first + question.rows, items]
                effects = (score.double() - without.double()).cpu().numpy()
            spreads = None if spread is None else spread[first, items].tolist()
            answers.append(Answer(items.tolist(), score.tolist(), spreads, effects))
        return answers

    def _chosen(self, questions: Sequence[Question], scores: Float[Tensor, "n items"]) -> list[Tensor]:
        """The items each answer is about: those named, or the best that may be recommended."""
        hidden = np.zeros(scores.shape, bool)
        of_length: dict[int, list[int]] = defaultdict(list)
        for place, question in enumerate(questions):
            if question.about is None:
                of_length[question.k].append(place)
            if question.allowed is not None:
                hidden[place] = True
                hidden[place, question.allowed] = False
            if question.filter_viewed:
                hidden[place, question.history] = True
        seen, chosen = torch.from_numpy(hidden).to(scores.device), {}
        # By length: among equal scores topk may choose others for another k.
        for k, places in of_length.items():
            best = top_items(scores[places], seen[places], k)
            chosen |= {place: row[row >= 0] for place, row in zip(places, best, strict=True)}
        return [
            chosen[place] if question.about is None else torch.from_numpy(question.about).to(scores.device)
            for place, question in enumerate(questions)
        ]

    @torch.no_grad()
    def _similar(self, asked: Sequence[Similar]) -> list[Answer]:
        numbers = [each.item for each in asked]
        # Filled up for the same reason as histories.
        filled = torch.tensor(numbers + [0] * filling(len(numbers)))
        scores = likeness(self.model, filled)[: len(numbers)].float().cpu()
        answers = []
        for each, row in zip(asked, scores, strict=True):
            best = top_items(row[None], (torch.zeros(1, dtype=torch.long), torch.tensor([each.item])), each.k)[0]
            best = best[best >= 0]
            answers.append(Answer(best.tolist(), row[best].tolist()))
        return answers
