r"""The drop rates and the ridge of a closed form, learned from held-out users by the exact gradient through the solution.

$$ P = (G + \mathrm{diag}\,\gamma)^{-1}, \qquad B = I - P\,\mathrm{diag}(P)^{-1}, \qquad
   \frac{\partial L}{\partial \gamma_i} = -\Big(P\,\frac{\partial L}{\partial P}\,P\Big)_{ii} $$

A loss $L$ of the scores $s = xB$ of some users has $\partial L/\partial P$ of low rank plus a diagonal, so the gradient of all
$\gamma$ costs less than the one inverse. The loss is the cross entropy of a user's hidden items under

$$ \mathrm{softmax}\big(e^{a + b \log n_u} s_{ui} + c \log g_i\big) $$

over the items that the user does not have, with $n_u$ the user's known items and $g_i$ the item's likes; $a, b, c$ are solved
for at every step, so $L$ is a function of the ridge alone.

Steck, Autoencoders that don't overfit towards the Identity, NeurIPS 2020 (the ridge).
"""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize
from torch import Tensor

from lbdrop.recommend.data.rows import Rows
from lbdrop.recommend.data.splits import HeldOut

__all__ = ["LearnedRidge", "RidgeScores", "learn_ridge"]

MAX_ITEMS, MAX_USERS = 6_000, 1_000
"""Rates are learned on the most popular items and some users: more of either takes longer and tells little more."""
LARGEST_LOG_ODDS = 4.0
"""A rate of .982: more has no effect but to scale the scores."""
SPREAD = 0.5
"""The prior's standard deviation of items' log odds around the common ones, and of the slope by popularity."""


@dataclass(frozen=True)
class LearnedRidge:
    """The learned ridge: the odds of dropping as a function of an item's likes, and λ."""

    log_odds: float
    slope: float
    """How the log odds change with the log of an item's likes."""
    typical: float
    """The log of the likes at which the odds are exp(log_odds)."""
    own: Tensor | None
    """What items' own log odds add; ``None`` if they have none."""
    regularisation: float
    loss: float
    """Nats for each hidden item, on the users learned from."""
    inverses: int
    """How many inverses were computed."""

    def odds(self, count: Float[Tensor, "items"]) -> Float[Tensor, "items"]:
        """p / (1 − p) of items with so many likes."""
        log_odds = self.log_odds + self.slope * (count.clamp(min=1).log() - self.typical)
        return (log_odds if self.own is None else log_odds + self.own).exp()

    @property
    def rate(self) -> float:
        """The drop rate of an item of typical popularity."""
        return 1 / (1 + math.exp(-self.log_odds))


class RidgeScores(torch.autograd.Function):
    """The scores xB for a ridge γ, and their exact gradient by γ."""

    @staticmethod
    def forward(ctx: Any, ridge: Tensor, gram: Tensor, x: Tensor) -> Tensor:
        matrix = gram.clone()
        matrix.diagonal().add_(ridge)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(matrix))
        projected = x @ inverse
        ctx.save_for_backward(inverse, projected)
        return x - projected / inverse.diagonal()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        inverse, projected = ctx.saved_tensors
        diagonal = inverse.diagonal()
        by_diagonal = (grad * projected).sum(0) / diagonal.square()
        # dL/dP = −xᵀ(grad/diag P) + diag(by_diagonal), and of P dL/dP P only the diagonal is asked for.
        low_rank = (projected * ((grad / diagonal) @ inverse)).sum(0)
        diagonal_part = torch.cat([rows.square() @ by_diagonal for rows in inverse.split(512)])
        return low_rank - diagonal_part, None, None


def learn_ridge(
    gram: Any,
    held_out: HeldOut,
    rate: float | None,
    regularisation: float | None,
    per: str,
    device: torch.device | str = "cpu",
) -> LearnedRidge:
    """The ridge with the least held-out loss; what is not None stays as it is. ``gram`` is a tensor, or sparse of scipy."""
    count = gram.diagonal() if isinstance(gram, Tensor) else torch.from_numpy(gram.diagonal()).to(device)
    items = torch.argsort(-count, stable=True)[:MAX_ITEMS].sort().values
    if not isinstance(gram, Tensor):
        some = items.cpu().numpy()
        part = torch.from_numpy(gram[some][:, some].toarray()).to(device)
    elif len(items) == len(gram):
        part = gram.clone()
    else:
        part = gram.index_select(0, items).index_select(1, items)
    problem = _Problem(part, *_users(held_out, items, part))
    parts = {
        "log_odds": None if rate is None else _log_odds(rate),
        "ridge": None if regularisation is None else math.log(regularisation),
        "slope": None if per != "model" else 0.0,
        "own": None if per == "item" else torch.zeros(len(items), dtype=part.dtype, device=part.device),
    }
    found, loss = problem.minimise(parts)
    log_odds, slope, ridge = (float(found[name]) for name in ("log_odds", "slope", "ridge"))
    if rate is None and abs(log_odds) > LARGEST_LOG_ODDS - 0.01:
        warnings.warn(
            f"edlae: the drop rate ran to the bound {1 / (1 + math.exp(-log_odds)):.3f}; held-out users cannot tell it from"
            " the regularisation (pass rate= to set it)",
            stacklevel=4,
        )
    own = None
    if per == "item":
        own = torch.zeros_like(count)  # items too rare to learn from keep the common rate
        own[items] = found["own"].to(own)
    return LearnedRidge(log_odds, slope, problem.typical, own, math.exp(ridge), loss, problem.inverses)


def _log_odds(rate: float) -> float:
    return math.log(rate / (1 - rate)) if rate > 0 else -math.inf


def _users(held_out: HeldOut, items: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
    """Known and hidden items of some held-out users, written out on these items."""
    some = np.flatnonzero(np.diff(held_out.held_out.indptr))
    some = np.sort(np.random.default_rng(0).permutation(some)[:MAX_USERS])
    chosen = [rows[some] for rows in (held_out.fold_in, held_out.held_out)]
    x, t = (Rows.from_csr(rows, gram.device).batch(range(len(some))).dense(dtype=gram.dtype) for rows in chosen)
    return x.index_select(1, items), t.index_select(1, items)


class _Problem:
    """The held-out loss as a function of the ridge's parameters."""

    def __init__(self, gram: Tensor, x: Tensor, target: Tensor):
        self.gram, self.x, self.target = gram, x, target
        self.count = gram.diagonal().clone()
        log_count = self.count.clamp(min=1).log()
        self.typical = float(log_count.mean())
        self.popularity = log_count - self.typical
        length = x.sum(1, keepdim=True).clamp(min=1).log()
        self.length = length - length.mean()
        self.calibration = np.array([math.log(8.0), -0.5, 0.5])
        self.inverses = 0

    def minimise(self, fixed: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """Parameters that are None in ``fixed`` are free."""
        free = [name for name, value in fixed.items() if value is None]
        largest = float(self.count.max().clamp(min=1))
        start = {"log_odds": 0.0, "ridge": math.log(min(100.0, largest)), "slope": 0.0}
        bounds = {
            "log_odds": (-LARGEST_LOG_ODDS, LARGEST_LOG_ODDS),
            "ridge": (math.log(0.01), math.log(100 * largest)),
            "slope": (-2.0, 2.0),
            "own": (-4.0, 4.0),
        }
        size = {name: len(self.gram) if name == "own" else 1 for name in free}
        first = np.concatenate([np.full(size[name], start.get(name, 0.0)) for name in free])
        limits = [bounds[name] for name in free for _ in range(size[name])]

        def unpack(values: np.ndarray) -> dict[str, Any]:
            parts = np.split(values, np.cumsum([size[name] for name in free])[:-1])
            tensors = (torch.tensor(v if name == "own" else v[0], dtype=self.gram.dtype, device=self.gram.device)
                       for name, v in zip(free, parts, strict=True))  # fmt: skip
            return fixed | dict(zip(free, tensors, strict=True))

        def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
            parameters = unpack(values)
            leaves = [parameters[name].requires_grad_() for name in free]
            loss = self.loss(self._ridge(parameters)) + self._prior(parameters)
            grads = torch.autograd.grad(loss, leaves)
            return float(loss.detach()), np.concatenate([np.atleast_1d(g.double().cpu().numpy()) for g in grads])

        options = {"maxiter": 15, "ftol": 1e-6 if self.gram.dtype == torch.float32 else 1e-14, "gtol": 1e-7}
        found = minimize(objective, first, jac=True, method="L-BFGS-B", bounds=limits, options=options)
        return unpack(found.x), float(found.fun)

    def loss(self, ridge: Float[Tensor, "items"]) -> Float[Tensor, ""]:
        """The held-out loss at the best calibration; its gradient by the calibration is 0 there."""
        self.inverses += 1
        scores = RidgeScores.apply(ridge, self.gram, self.x)
        self._calibrate(scores.detach())
        return self._cross_entropy(scores, torch.tensor(self.calibration, dtype=scores.dtype, device=scores.device))

    def _calibrate(self, scores: Tensor) -> None:
        def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
            c = torch.tensor(values, dtype=scores.dtype, device=scores.device, requires_grad=True)
            loss = self._cross_entropy(scores, c)
            (grad,) = torch.autograd.grad(loss, c)
            return float(loss.detach()), grad.double().cpu().numpy()

        exact = scores.dtype == torch.float64
        options = {"maxiter": 100 if exact else 20, "ftol": 1e-15 if exact else 1e-7, "gtol": 1e-10 if exact else 1e-6}
        self.calibration = minimize(objective, self.calibration, jac=True, method="L-BFGS-B", options=options).x

    def _cross_entropy(self, scores: Tensor, calibration: Tensor) -> Tensor:
        a, b, c = calibration
        z = scores * torch.exp(a + b * self.length) + c * self.popularity
        log_p = torch.log_softmax(z.masked_fill(self.x > 0, -torch.inf), 1)
        return -torch.where(self.target > 0, log_p, 0.0).sum() / self.target.sum()

    def _ridge(self, p: dict[str, Any]) -> Tensor:
        log_odds = p["log_odds"] + p["slope"] * self.popularity + p["own"]
        return torch.exp(log_odds) * self.count + torch.exp(torch.as_tensor(p["ridge"], dtype=self.count.dtype))

    def _prior(self, p: dict[str, Any]) -> Tensor:
        """Of the parameters beside one rate and λ, in nats for each hidden item."""
        squares = torch.as_tensor(p["own"]).square().sum() + torch.as_tensor(p["slope"]).square()
        return squares / (2 * SPREAD**2 * self.target.sum())
