"""What the methods without a network share: learned tensors by name, saved and restored without change."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from scipy.sparse import csr_array, csr_matrix
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.recommend.data.rows import Batch, Rows
from lbdrop.recommend.data.splits import HeldOut

__all__ = ["ItemItem", "Linear", "Popularity", "binary", "co_occurrence"]


class Linear(ABC):
    """A method with ``fit(matrix)`` and ``scores(batch)``."""

    name: ClassVar[str]
    learns_from_held_out = False
    """Whether ``fit`` uses held-out users, which :class:`~lbdrop.recommend.Recommender` then gives it."""

    def __init__(self, device: torch.device | str | None = None):
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.state: dict[str, Tensor] = {}
        """The learned tensors; with the constructor's arguments, all that a saved model needs."""

    @abstractmethod
    def fit(self, matrix: Any, held_out: HeldOut | None = None) -> "Linear":
        """Learn from a scipy matrix (users, items) and return the model."""

    @abstractmethod
    def scores(self, batch: Batch) -> Float[Tensor, "size items"]:
        """A score for each user and item; higher is better."""

    def restore(self, state: dict[str, Tensor]) -> "Linear":
        """Restore :attr:`state`."""
        self.state = {name: value.to(self.device) for name, value in state.items()}
        return self

    def learned(self, name: str) -> Tensor:
        if name not in self.state:
            raise DropoutError(f"{type(self).__name__} is not fitted; call fit(matrix) first")
        return self.state[name]


class Popularity(Linear):
    """The same ranking for all users: items by how many users have them."""

    name = "popularity"

    def fit(self, matrix: Any, held_out: HeldOut | None = None) -> "Popularity":
        counts = np.bincount(binary(matrix).indices, minlength=matrix.shape[1])
        self.state = {"counts": torch.from_numpy(counts.astype(np.float32)).to(self.device)}
        return self

    def scores(self, batch: Batch) -> Float[Tensor, "size items"]:
        return self.learned("counts").expand(batch.size, -1)


class ItemItem(Linear):
    """Scores are the rows of an item × item matrix summed over a user's items."""

    def scores(self, batch: Batch) -> Float[Tensor, "size items"]:
        weights = self.learned("weights")
        bag = batch.value if batch.value is None else batch.value.to(weights.dtype)
        return F.embedding_bag(batch.item, weights, batch.offsets, mode="sum", per_sample_weights=bag)


def binary(matrix: Any) -> Any:
    """The matrix with 1 for every interaction; ``csr_matrix``, because irspack and implicit take no csr_array."""
    if not hasattr(matrix, "tocsr"):
        raise DropoutError(f"matrix: want a scipy sparse matrix (users, items), got {type(matrix).__name__}")
    ones = csr_matrix(csr_array(matrix), dtype=np.float32, copy=True)
    ones.sum_duplicates()
    ones.eliminate_zeros()
    ones.data[:] = 1
    return ones


def co_occurrence(matrix: Any, device: torch.device) -> Tensor:
    """XᵀX of a binary matrix; whole numbers below 2²⁴, so float32 holds them exactly."""
    if device.type == "cpu":
        return torch.from_numpy((matrix.T @ matrix).toarray())
    gram = torch.zeros(matrix.shape[1], matrix.shape[1], device=device)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # TF32 multiplies zeros and ones exactly
    try:
        for batch in Rows.from_csr(matrix, device).batches(4096, shuffle=False):
            x = batch.dense()
            gram.addmm_(x.T, x)
    finally:
        torch.set_float32_matmul_precision(before)
    return gram
