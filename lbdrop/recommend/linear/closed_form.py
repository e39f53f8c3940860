r"""Linear autoencoders in closed form: EASE, and EDLAE, whose ridge is dropout with rates learned from held-out users.

$$ B = I - P \,\mathrm{diag}(P)^{-1}, \qquad P = (G + \Gamma)^{-1}, \qquad G = X^\top W X, \qquad
   \Gamma = \tfrac{p}{1-p}\,\mathrm{diag}\,G + \lambda I, \qquad \text{scores} = X B $$

With $p = 0$ and $W = I$ it is EASE. The first term of $\Gamma$ is what Bernoulli dropout of the input with rate $p$ adds to the
squared error, exactly, when every item is predicted without itself. In EDLAE a user with $n$ items has weight
$w \propto n^{-\beta}$: with $\beta = 0$ a user's share in $G$ grows with $n^2$, and the few with the longest histories decide.

Steck, Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019; Autoencoders that don't overfit towards the Identity,
NeurIPS 2020.
"""

import os
import warnings
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from scipy.linalg import lapack
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.recommend.data.splits import HeldOut
from lbdrop.recommend.linear.base import ItemItem, binary, co_occurrence
from lbdrop.recommend.linear.neighbours import neighbour_weights, sparse_co_occurrence
from lbdrop.recommend.linear.ridge_rates import LearnedRidge, learn_ridge
from lbdrop.recommend.number_checks import check_number
from lbdrop.recommend.train.weights import ndcg_of_each, some_users

__all__ = ["EASE", "EDLAE", "check_memory", "invert"]

MAX_ITEMS = 25_000
"""Items of a catalogue whose every pair is computed on a CPU: 2.5 gigabytes, and some minutes."""
RAISED = 3.0
"""By how much λ is raised at once."""
USUAL_RATE, USUAL_RIDGE = 0.5, 100.0
"""Without held-out users, where nothing can be learned: level on small data, where little depends on them."""


class EDLAE(ItemItem):
    r"""The zero-diagonal item-item regression under dropout of the input, by one Cholesky factorisation in place.

    Memory: one items × items matrix, and two while rates are learned (of at most 6,000 items). Time grows with items³. So in a
    large catalogue each item is predicted from 200 others alone; see :mod:`lbdrop.recommend.linear.neighbours`.

    Args:
        rate: the drop rate $p$, 0 ≤ p < 1; None learns it from held-out users.
        regularisation: λ; None learns it from held-out users.
        per: "model" learns one rate; "popularity" lets the rate rise or fall with an item's likes; "item" gives every item
            its own, drawn to the others by a prior.
        max_items: items of a catalogue up to which every pair is computed; None decides by the device: 25,000 on a CPU, on a
            GPU what fits in its memory.
        dtype: precision of the factorisation.
        device: the default is a GPU, if there is one.
    """

    name = "edlae"

    def __init__(
        self,
        rate: float | None = None,
        regularisation: float | None = None,
        *,
        per: Literal["model", "popularity", "item"] = "model",
        balance: float = 0.5,
        max_items: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ):
        super().__init__(device)
        if rate is not None:
            check_number("rate", rate, minimum=0)
            if rate >= 1:
                raise DropoutError(f"rate: want less than 1, got {rate:g}; 0 drops nothing")
        if regularisation is not None:
            check_number("regularisation", regularisation, above=0)
        if per not in ("model", "popularity", "item"):
            raise DropoutError(f"per: want model, popularity or item, got {per!r}")
        if per != "model" and rate is not None:
            raise DropoutError(f"per={per!r}: want a learned rate, got rate={rate:g}; leave rate out")
        self.rate, self.regularisation, self.per, self.dtype = rate, regularisation, per, dtype
        if max_items is not None:
            check_number("max_items", max_items, integer=True, minimum=1)
        check_number("balance", balance, minimum=0, maximum=1)
        self.balance, self.scale = balance, 1.0
        self.max_items, self.items, self.whole = max_items, 0, True
        self.ridge: LearnedRidge | None = None
        """What was learned; ``None`` where rate and regularisation were given, or restored."""

    @property
    def learns_from_held_out(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rate is None or self.regularisation is None

    def fit(self, matrix: Any, held_out: HeldOut | None = None) -> "EDLAE":
        """Learn from a scipy matrix (users, items); rate and ridge from ``held_out`` users, who then join the others."""
        if held_out is not None and held_out.scored and self.learns_from_held_out:
            return self.release(self.begin(matrix, held_out), matrix, held_out)
        gram = self.counted(matrix)
        self.learn(gram, held_out)
        return self.solve(gram) if held_out is None else self.release(gram, matrix, held_out)

    def begin(self, rows: Any, held_out: HeldOut, seconds: float | None = None) -> Any:
        """Learn without the held-out users being counted, so that they can decide on more; returns the co-occurrences.

        The likelihood wants a smaller λ than the ranking does. So λ is raised as long as NDCG@100 of held-out users rises.
        ``seconds`` are for what takes longer than this, if anything.
        """
        gram = self.counted(rows)
        self.learn(gram, held_out)
        self.solve(gram.clone() if self.whole else gram)
        users = some_users(held_out, self.device)
        best, ridge, state = -1.0, self.ridge, self.state
        while self.regularisation is None and ridge is not None:
            now = float(ndcg_of_each(lambda batch: [self.scores(batch)], users).mean())
            if now <= best:
                self.ridge, self.state = ridge, state
                break
            best, ridge, state = now, self.ridge or ridge, self.state
            self.ridge = replace(ridge, regularisation=RAISED * ridge.regularisation)
            self.solve(gram.clone() if self.whole else gram)
        return gram

    def counted(self, matrix: Any) -> Any:
        """The co-occurrences of the items: a tensor of all pairs, or of many items a sparse matrix of those that occur."""
        rows = binary(matrix)
        self.items = rows.shape[1]
        self.whole = self.items <= self.max_items if self.max_items is not None else _fits(self.items, self.device)
        if self.whole:
            check_memory(self.items, self.dtype, self.device)
        lengths = np.diff(rows.indptr).clip(min=1)
        self.scale = float(lengths.sum() / (lengths ** (1 - self.balance)).sum())  # so that likes keep their sum
        return self._co_occurrence(rows)

    def _co_occurrence(self, rows: Any) -> Any:
        lengths = np.diff(rows.indptr).clip(min=1)
        weight = None if self.balance == 0 else self.scale * lengths**-self.balance
        return co_occurrence(rows, self.device, weight) if self.whole else sparse_co_occurrence(rows, weight)

    def release(self, gram: Any, rows: Any, held_out: HeldOut) -> "EDLAE":
        """Count held-out users too, once rates are learned; ``rows`` are the others."""
        gram += self._co_occurrence(binary(held_out.fold_in + held_out.held_out))
        return self.solve(gram)

    def learn(self, gram: Any, held_out: HeldOut | None) -> "EDLAE":
        """The rates and the ridge for these co-occurrences; nothing to do where both were given."""
        self.ridge = None
        if self.rate is None or self.regularisation is None:
            if held_out is None or not held_out.scored:
                warnings.warn(
                    f"{self.name}: want held-out users to learn from, got none; the rate is {self._rate:g} and the"
                    f" regularisation {self._regularisation:g} (pass both to choose them)",
                    stacklevel=3,
                )
            else:
                self.ridge = learn_ridge(gram, held_out, self.rate, self.regularisation, self.per, self.device)
        return self

    def solve(self, gram: Any) -> "EDLAE":
        """The weights for the co-occurrences of :meth:`counted`, which are overwritten."""
        count = torch.from_numpy(gram.diagonal()).to(self.device) if not self.whole else gram.diagonal().clone()
        if self.ridge is None:
            odds, ridge = torch.full_like(count, self._rate / (1 - self._rate)), self._regularisation
        else:
            odds, ridge = self.ridge.odds(count), self.ridge.regularisation
        if self.whole:
            gram = gram.to(self.dtype)
            gram.diagonal().add_(odds * count + ridge)
            weights = invert(gram, f"XᵀX + {ridge:g}·I")
            weights.div_(-weights.diagonal().clone())
            weights.diagonal().zero_()
            self.state = {"weights": weights} | self._rates(odds)
        else:
            found = neighbour_weights(gram, (odds * count + ridge).cpu().numpy())
            self.state = {name: each.to(self.device) for name, each in found.items()} | self._rates(odds)
        return self

    def _rates(self, odds: Float[Tensor, "items"]) -> dict[str, Tensor]:
        return {"rates": (odds / (1 + odds)).float()}

    @property
    def _rate(self) -> float:
        return USUAL_RATE if self.rate is None else self.rate

    @property
    def _regularisation(self) -> float:
        return USUAL_RIDGE if self.regularisation is None else self.regularisation


class EASE(EDLAE):
    """EDLAE without dropout: ridge regression of every item on all others.

    Args:
        regularisation: λ; the published values are 500 for ML-20M, 1,000 for Netflix and 200 for MSD.
        dtype: precision of the factorisation.
        device: the default is a GPU, if there is one.
    """

    name = "ease"

    def __init__(
        self,
        regularisation: float = 500.0,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ):
        super().__init__(0.0, regularisation, balance=0.0, max_items=2**31, dtype=dtype, device=device)

    def _rates(self, odds: Float[Tensor, "items"]) -> dict[str, Tensor]:
        return {}


def invert(matrix: Float[Tensor, "n n"], words: str = "the matrix") -> Float[Tensor, "n n"]:
    """The inverse of a symmetric positive definite matrix, in its own memory on a CPU."""
    if matrix.device.type == "cpu":
        array = matrix.numpy().T  # in Fortran's order, for LAPACK to write into
        factorise, finish = (getattr(lapack, f"{'d' if matrix.dtype == torch.float64 else 's'}{name}")
                             for name in ("potrf", "potri"))  # fmt: skip
        factor, failed = factorise(array, lower=1, overwrite_a=1, clean=0)
        if not failed:
            array, failed = finish(factor, lower=1, overwrite_c=1)
        inverse = torch.from_numpy(array.T)  # its upper triangle is the result
        for start in range(0, 0 if failed else len(inverse), 1024):
            block = slice(start, start + 1024)
            inverse[block, block] = inverse[block, block].triu() + inverse[block, block].triu(1).T
            inverse[start + 1024 :, block] = inverse[block, start + 1024 :].T
    else:
        factor, info = torch.linalg.cholesky_ex(matrix)
        failed, inverse = int(info), matrix if int(info) else torch.cholesky_inverse(factor)
    if failed:
        raise DropoutError(
            f"{words} is not positive definite in {matrix.dtype}; raise the regularisation or pass dtype=torch.float64"
        )
    return inverse


def _fits(items: int, device: torch.device) -> bool:
    """Whether every pair of items is computed."""
    if device.type != "cuda":
        return items <= MAX_ITEMS
    return (
        4 * items**2 <= torch.cuda.mem_get_info(device)[0] // 5
    )  # the pairs, a factor, the inverse, a copy for release


def check_memory(items: int, dtype: torch.dtype, device: torch.device) -> None:
    """An error where the matrix of all pairs of items does not fit, before any work."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0] // 3
    else:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") if hasattr(os, "sysconf") else 2**63
    needed = items * items * dtype.itemsize
    if needed > free:
        raise DropoutError(
            f"a matrix of all pairs of {items:,} items: want {needed / 2**30:,.1f} GiB of memory, got {free / 2**30:,.1f};"
            " leave out rare items (Interactions.from_frame(…, min_item_users=…)) or use a method of vectors, such as"
            ' dropout="learned"'
        )
