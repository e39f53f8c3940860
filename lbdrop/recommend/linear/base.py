"""What the methods without a network share: learned tensors by name, saved and restored without change."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from scipy.sparse import csr_array, csr_matrix
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.recommend.data.rows import Batch, Rows
from lbdrop.recommend.data.splits import HeldOut
from lbdrop.recommend.linear.neighbours import sparse_scores

__all__ = ["ItemItem", "Linear", "Popularity", "binary", "co_occurrence", "of_one_item"]


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

    averages_masks = False

    def plain_scores(self, batch: Batch) -> Float[Tensor, "size items"]:
        """As :meth:`scores`; a linear method has no masks to leave out."""
        return self.scores(batch)

    def shared_masks(self, samples: int, seed: int) -> None:
        """A linear method alone is scored without masks."""
        return None

    def masked_scores(self, batch: Batch, mask: Tensor) -> Float[Tensor, "size items"]:
        raise DropoutError(f"masked_scores: want a method with masks, got {self.name!r}; call scores(batch)")

    def similarity(self, indices: Int64[Tensor, "n"]) -> Float[Tensor, "n items"]:
        """The similarity of these items to each item: cosines of their vectors, unless the method has better."""
        if "items" not in self.state:
            raise DropoutError(f"similar_items: want a method that can compare items, got {self.name!r}")
        vectors = F.normalize(self.state["items"].float(), dim=1)
        return vectors[indices] @ vectors.T

    def drop_rates(self) -> dict[str, Tensor]:
        """The drop rates of all items, by the name of their column."""
        if "rates" not in self.state:
            raise DropoutError(f"rates: want a method with dropout, got {self.name!r}")
        return {"rate": self.state["rates"]}

    def restore(self, state: dict[str, Tensor]) -> "Linear":
        """Restore :attr:`state`."""
        # The products of vectors round by where in memory they begin, which a file leaves to chance.
        self.state = {name: value.to(self.device, copy=name == "items") for name, value in state.items()}
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
    """Scores are the rows of an item × item matrix summed over a user's items; the matrix is dense, or sparse."""

    def scores(self, batch: Batch) -> Float[Tensor, "size items"]:
        weights = self.learned("weights")
        if "targets" in self.state:
            return sparse_scores(self.state, batch)
        bag = batch.value if batch.value is None else batch.value.to(weights.dtype)
        return F.embedding_bag(batch.item, weights, batch.offsets, mode="sum", per_sample_weights=bag)

    def similarity(self, indices: Int64[Tensor, "n"]) -> Float[Tensor, "n items"]:
        """The weight of these items in the score of each."""
        return self.scores(of_one_item(indices, len(self.state.get("rates", self.learned("weights")))))


def of_one_item(indices: Int64[Tensor, "n"], items: int, length: int = 1) -> Batch:
    """Users who have only one item, or none (``length`` 0)."""
    n, device = len(indices), indices.device
    user, item = torch.arange(n, device=device)[: n * length], indices[: n * length]
    number = torch.arange(n, device=device)
    counts = torch.full((n,), float(length), device=device)
    return Batch(user, item, n, items, number, counts, number * length, torch.add(item, user, alpha=items))


def binary(matrix: Any) -> Any:
    """The matrix with 1 for every interaction; ``csr_matrix``, because irspack and implicit take no csr_array."""
    if not hasattr(matrix, "tocsr"):
        raise DropoutError(f"matrix: want a scipy sparse matrix (users, items), got {type(matrix).__name__}")
    ones = csr_matrix(csr_array(matrix), dtype=np.float32, copy=True)
    ones.sum_duplicates()
    ones.eliminate_zeros()
    ones.data[:] = 1
    return ones


def co_occurrence(
    matrix: Any, device: torch.device, weight: Float[np.ndarray, "users"] | None = None
) -> Float[Tensor, "items items"]:
    """XᵀWX of a binary matrix. Without weights of users: whole numbers below 2²⁴, so float32 holds them exactly."""
    if device.type == "cpu":
        weighted = matrix if weight is None else matrix.multiply(weight[:, None].astype(np.float32)).tocsr()
        return torch.from_numpy((matrix.T @ weighted).toarray())
    gram = torch.zeros(matrix.shape[1], matrix.shape[1], device=device)
    before = torch.get_float32_matmul_precision()
    # TF32 multiplies zeros and ones exactly.
    torch.set_float32_matmul_precision("high" if weight is None else "highest")
    try:
        for batch in Rows.from_csr(matrix, device).batches(4096, shuffle=False):
            x = batch.dense()
            gram.addmm_(x.T, x if weight is None else x * torch.from_numpy(weight).to(x)[batch.number, None])
    finally:
        torch.set_float32_matmul_precision(before)
    return gram
