r"""Baselines without a network, each with the two methods ``fit(matrix)`` and ``scores(batch)``.

$$ \text{EASE:}\quad B = I - P \,\mathrm{diag}(P)^{-1}, \qquad P = (X^\top X + \lambda I)^{-1}, \qquad \text{scores} = X B $$

Steck, Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019. Hu, Koren and Volinsky, Collaborative Filtering for
Implicit Feedback Datasets, ICDM 2008 (WMF). Ning and Karypis, SLIM, ICDM 2011. Rendle et al., Revisiting the Performance of
iALS on Item Recommendation Benchmarks, RecSys 2022 (iALS).
"""

import importlib
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
from lbdrop.recommend.linear.elastic_net import non_negative_elastic_net
from lbdrop.recommend.linear.least_squares import System, fold_in
from lbdrop.recommend.number_checks import check_number

__all__ = ["EASE", "IALS", "LINEAR", "SLIM", "WMF", "Linear", "Popularity"]


class Linear(ABC):
    """What the baselines share: learned tensors by name, saved and restored without change."""

    name: ClassVar[str]

    def __init__(self, device: torch.device | str | None = None):
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.state: dict[str, Tensor] = {}
        """The learned tensors; with the constructor's arguments, all that a saved model needs."""

    @abstractmethod
    def fit(self, matrix: Any) -> "Linear":
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

    def fit(self, matrix: Any) -> "Popularity":
        counts = np.bincount(_binary(matrix).indices, minlength=matrix.shape[1])
        self.state = {"counts": torch.from_numpy(counts.astype(np.float32)).to(self.device)}
        return self

    def scores(self, batch: Batch) -> Float[Tensor, "size items"]:
        return self.learned("counts").expand(batch.size, -1)


class _ItemItem(Linear):
    """Scores are the rows of an item × item matrix summed over a user's items."""

    def scores(self, batch: Batch) -> Float[Tensor, "size items"]:
        weights = self.learned("weights")
        bag = batch.value if batch.value is None else batch.value.to(weights.dtype)
        return F.embedding_bag(batch.item, weights, batch.offsets, mode="sum", per_sample_weights=bag)


class EASE(_ItemItem):
    r"""The zero-diagonal item-item regression in closed form, by one Cholesky factorisation.

    Args:
        regularisation: λ; the published values are 500 for ML-20M, 1,000 for Netflix and 200 for MSD.
        dtype: precision of the factorisation; it holds items² numbers three times.
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
        super().__init__(device)
        check_number("regularisation", regularisation, above=0)
        self.regularisation, self.dtype = regularisation, dtype

    def fit(self, matrix: Any) -> "EASE":
        gram = _gram(_binary(matrix), self.device).to(self.dtype)
        gram.diagonal().add_(self.regularisation)
        factor, failed = torch.linalg.cholesky_ex(gram)
        if int(failed):
            raise DropoutError(
                f"XᵀX + {self.regularisation}·I is not positive definite in {self.dtype}; raise the regularisation or"
                " pass dtype=torch.float64"
            )
        del gram
        weights = torch.cholesky_inverse(factor)
        del factor
        weights.div_(-weights.diagonal().clone())
        weights.diagonal().zero_()
        self.state = {"weights": weights}
        return self


class SLIM(_ItemItem):
    """Sparse non-negative item-item regression: on a GPU all items at once, on the CPU by irspack's coordinate descent.

    With several threads irspack repeats a fit to about 3e-4 only; ``IRSPACK_NUM_THREADS_DEFAULT=1`` makes it exact.

    Args:
        alpha: strength of the elastic net, multiplied by the number of users as in irspack.
        l1_ratio: the L1 share of it.
        iterations: largest number of irspack's passes over the coordinates.
        top: weights kept in each column, by irspack; ``None`` for all.
        device: of weights and scores; a GPU also fits, if ``top`` is ``None``.
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

    def fit(self, matrix: Any) -> "SLIM":
        if self.device.type == "cuda" and self.top is None and self.alpha * (1 - self.l1_ratio) > 0:
            gram, strength = _gram(_binary(matrix), self.device), self.alpha * matrix.shape[0]
            l1, l2 = strength * self.l1_ratio, strength * (1 - self.l1_ratio)
            self.state = {"weights": non_negative_elastic_net(gram, l1, l2)}
            return self
        irspack = _import_baseline("irspack")
        learner = irspack.SLIMRecommender(
            _binary(matrix), alpha=self.alpha, l1_ratio=self.l1_ratio, n_iter=self.iterations, top_k=self.top
        )
        learner.learn()
        self.state = {"weights": torch.from_numpy(learner.W.toarray().astype(np.float32)).to(self.device)}
        return self


class _Factors(Linear):
    """Scores are products of item vectors with a user's vector from least squares, for known and new users."""

    @abstractmethod
    def system(self, batch: Batch) -> System:
        """The least squares of each user."""

    def scores(self, batch: Batch) -> Float[Tensor, "size items"]:
        vectors = self.learned("items")
        return fold_in(batch, vectors, self.system(batch)) @ vectors.T


class WMF(_Factors):
    """Weighted matrix factorisation by implicit's alternating least squares.

    Args:
        factors: length of the vectors.
        regularisation: the ridge; implicit's own .01 over-fits (MovieLens-1M, 200 factors, alpha 10, validation
            NDCG@100: .361 with it, .378 with 10, .406 with 30, .428 with 100).
        alpha: the weight of an interaction, where every other pair has weight 1.
        iterations: sweeps.
        seed: draws the initial vectors.
        device: where users are scored; fitting runs on the CPU.
    """

    name = "wmf"

    def __init__(
        self,
        factors: int = 200,
        regularisation: float = 30.0,
        alpha: float = 3.0,
        *,
        iterations: int = 15,
        seed: int = 0,
        device: torch.device | str | None = None,
    ):
        super().__init__(device)
        check_number("factors", factors, integer=True, minimum=1)
        check_number("regularisation", regularisation, above=0)  # without it the solution may not be unique
        check_number("alpha", alpha, above=0)
        check_number("iterations", iterations, integer=True, minimum=1)
        check_number("seed", seed, integer=True, minimum=0, maximum=2**31 - 1)
        self.factors, self.regularisation, self.alpha = factors, regularisation, alpha
        self.iterations, self.seed = iterations, seed

    def fit(self, matrix: Any) -> "WMF":
        als, threads = _import_baseline("implicit.cpu.als"), _import_baseline("threadpoolctl")
        with threads.threadpool_limits(1, "blas"):  # each of its own threads calls BLAS, which must then use one thread
            learner = als.AlternatingLeastSquares(
                self.factors, self.regularisation, self.alpha, iterations=self.iterations, random_state=self.seed
            )
            learner.fit(_binary(matrix), show_progress=False)
        self.state = {"items": torch.from_numpy(np.asarray(learner.item_factors)).to(self.device)}
        return self

    def system(self, batch: Batch) -> System:
        return System(self.alpha, self.alpha - 1, 1.0, torch.full_like(batch.counts, self.regularisation))


class IALS(_Factors):
    """The same model with the unobserved weight and the frequency-scaled ridge of Rendle et al., by irspack.

    With several threads irspack repeats a fit to about 1e-5 only; ``IRSPACK_NUM_THREADS_DEFAULT=1`` makes it exact.

    Args:
        factors: length of the vectors.
        unobserved: α₀, the weight of a pair without an interaction; an interaction has 1 more.
        regularisation: the ridge of a user with n items is this times (α₀·items + n)^ν.
        frequency: ν.
        epochs: sweeps.
        seed: draws the initial vectors.
        device: where users are scored; fitting runs on the CPU.
    """

    name = "ials"

    def __init__(
        self,
        factors: int = 256,
        unobserved: float = 0.1,
        regularisation: float = 0.01,
        frequency: float = 1.0,
        *,
        epochs: int = 16,
        seed: int = 0,
        device: torch.device | str | None = None,
    ):
        super().__init__(device)
        check_number("factors", factors, integer=True, minimum=1)
        check_number("unobserved", unobserved, above=0)
        check_number("regularisation", regularisation, above=0)
        check_number("frequency", frequency, minimum=0)
        check_number("epochs", epochs, integer=True, minimum=1)
        check_number("seed", seed, integer=True, minimum=0, maximum=2**31 - 1)
        self.factors, self.unobserved, self.regularisation = factors, unobserved, regularisation
        self.frequency, self.epochs, self.seed = frequency, epochs, seed

    def fit(self, matrix: Any) -> "IALS":
        learner = _import_baseline("irspack").IALSRecommender(
            _binary(matrix),
            n_components=self.factors,
            alpha0=self.unobserved,
            reg=self.regularisation,
            nu=self.frequency,
            random_seed=self.seed,
        )
        learner.start_learning()
        for _ in range(self.epochs):  # its own loop prints a progress bar
            learner.run_epoch()
        # A copy, because the view would keep the trainer with every user's vector in memory.
        self.state = {"items": torch.from_numpy(np.array(learner.get_item_embedding())).to(self.device)}
        return self

    def system(self, batch: Batch) -> System:
        ridge = self.regularisation * (self.unobserved * batch.items + batch.counts) ** self.frequency
        return System(1.0, 1.0, self.unobserved, ridge)


LINEAR: dict[str, type[Linear]] = {each.name: each for each in (Popularity, EASE, SLIM, WMF, IALS)}
"""The baselines by name."""


def _binary(matrix: Any) -> Any:
    """The matrix with 1 for every interaction; ``csr_matrix``, because irspack and implicit take no csr_array."""
    if not hasattr(matrix, "tocsr"):
        raise DropoutError(f"matrix: want a scipy sparse matrix (users, items), got {type(matrix).__name__}")
    ones = csr_matrix(csr_array(matrix), dtype=np.float32, copy=True)
    ones.sum_duplicates()
    ones.eliminate_zeros()
    ones.data[:] = 1
    return ones


def _gram(matrix: Any, device: torch.device) -> Tensor:
    """Co-occurrence counts; whole numbers below 2²⁴, so float32 holds them exactly."""
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


def _import_baseline(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DropoutError(f"{module}: package not found; pip install 'lbdrop[rivals]'") from error
