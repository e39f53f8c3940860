"""The methods without a network by name; and SLIM, which irspack fits.

Ning and Karypis, SLIM: Sparse Linear Methods for Top-N Recommender Systems, ICDM 2011.
"""

import importlib
from typing import Any

import numpy as np
import torch

from lbdrop.errors import DropoutError
from lbdrop.recommend.data.splits import HeldOut
from lbdrop.recommend.linear.base import ItemItem, Linear, Popularity, binary
from lbdrop.recommend.linear.blend import Blend
from lbdrop.recommend.linear.closed_form import EASE, EDLAE
from lbdrop.recommend.linear.factors import IALS, WMF
from lbdrop.recommend.number_checks import check_number

__all__ = ["EASE", "EDLAE", "IALS", "LINEAR", "SLIM", "WMF", "Blend", "Linear", "Popularity"]


class SLIM(ItemItem):
    """Sparse non-negative item-item regression: by irspack's coordinate descent.

    With several threads irspack repeats a fit to about 3e-4 only; ``IRSPACK_NUM_THREADS_DEFAULT=1`` makes it exact.

    Args:
        alpha: strength of the elastic net, multiplied by the number of users as in irspack.
        l1_ratio: the L1 share of it.
        iterations: largest number of irspack's passes over the coordinates.
        top: weights kept in each column, by irspack; ``None`` for all.
        device: of weights and scores; fitting runs on the CPU.
    """

    name = "slim"

    def __init__(
        self,
        alpha: float = 0.05,
        l1_ratio: float = 0.01,
        *,
        iterations: int = 100,
        top: int | None = None,
        device: torch.device | str | None = None,
    ):
        super().__init__(device)
        check_number("alpha", alpha, minimum=0)
        check_number("l1_ratio", l1_ratio, minimum=0, maximum=1)
        check_number("iterations", iterations, integer=True, minimum=1)
        if top is not None:
            check_number("top", top, integer=True, minimum=1)
        self.alpha, self.l1_ratio, self.iterations, self.top = alpha, l1_ratio, iterations, top

    def fit(self, matrix: Any, held_out: HeldOut | None = None) -> "SLIM":
        irspack = _import_baseline("irspack")
        learner = irspack.SLIMRecommender(
            binary(matrix), alpha=self.alpha, l1_ratio=self.l1_ratio, n_iter=self.iterations, top_k=self.top
        )
        learner.learn()
        self.state = {"weights": torch.from_numpy(learner.W.toarray().astype(np.float32)).to(self.device)}
        return self


LINEAR: dict[str, type[Linear]] = {each.name: each for each in (Popularity, EASE, EDLAE, Blend, SLIM, WMF, IALS)}
"""The baselines by name."""


def _import_baseline(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DropoutError(f"{module}: package not found; pip install 'lbdrop[rivals]'") from error
