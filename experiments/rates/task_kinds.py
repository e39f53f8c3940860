"""What differs between kinds of tasks: the loss of an example, and what is measured of the network's outputs."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from experiments.rates import recommendation, text, uci
from lbdrop.metrics.regression import mixture_nll, rmse
from lbdrop.prediction import Kind as Predicts

__all__ = ["KINDS", "TaskKind"]


class TaskKind:
    """Classes, one for each example; the others say what they do differently."""

    predicts: Predicts = "classification"
    """What :func:`lbdrop.predict` has to make of the outputs."""
    class_dim = 1
    many = False
    """Whether an example has several observations, of which its loss is the mean."""
    releases = True
    """Whether held-out examples may be released into training: those of another form than training's teach another task."""

    def losses(self, model: nn.Module, x: Tensor, y: Tensor) -> Float[Tensor, "batch"]:
        """Of each example: its negative log likelihood, by the number of its observations."""
        return F.cross_entropy(model(x), y, reduction="none")

    def pieces(self, y: Tensor) -> float:
        """How many observations an example has; a prior on weights is shared by all of them."""
        return 1.0

    def masks_that_matter(self, y: Tensor) -> float:
        """Of a layer's masks, the share that an observation has: all, as a character has its own at every unit."""
        return 1.0

    def measures(
        self, samples: Float[Tensor, "samples batch *outputs"], y: Tensor, model: nn.Module, unit: float
    ) -> dict[str, float]:
        """NLL in nats, and another measure, of the mixture of samples: class probabilities, or means in regression."""
        probabilities = samples.mean(0)
        picked = probabilities.gather(-1, y[..., None])[..., 0]
        # The mean of a few samples may round to 0 where a class is all but excluded.
        nll = -picked.clamp(min=torch.finfo(picked.dtype).tiny).log().mean()
        return {"nll": float(nll), "accuracy": float((probabilities.argmax(-1) == y).float().mean())}


class Language(TaskKind):
    """Classes in a row: the loss of a window is the mean over its characters."""

    class_dim, many = 2, True

    def losses(self, model: nn.Module, x: Tensor, y: Tensor) -> Float[Tensor, "batch"]:
        return F.cross_entropy(model(x).transpose(1, 2), y, reduction="none").mean(1)

    def pieces(self, y: Tensor) -> float:
        return float(text.CONTEXT)


class Regression(TaskKind):
    """A number with Gaussian noise, whose variance is learned."""

    predicts = "regression"

    def losses(self, model: Any, x: Tensor, y: Tensor) -> Float[Tensor, "batch"]:
        mean, log_variance = model(x)[:, 0], model.log_variance
        return 0.5 * ((y - mean) ** 2 * torch.exp(-log_variance) + log_variance + uci.LOG_TAU)

    def measures(
        self, samples: Float[Tensor, "samples batch *outputs"], y: Tensor, model: Any, unit: float
    ) -> dict[str, float]:
        noise = float(torch.exp(model.log_variance.detach()))
        means, spread = samples[..., 0] * unit, noise * unit**2
        return {"nll": float(mixture_nll(means, y * unit, spread)), "rmse": float(rmse(means.mean(0), y * unit))}


class Ranking(TaskKind):
    """Likes of a user: a multinomial over the catalogue. In training a row predicts itself, held out one part the other."""

    many, releases = True, False

    def losses(self, model: nn.Module, x: Tensor, y: Tensor) -> Float[Tensor, "batch"]:
        return recommendation.losses(model, x, y)

    def pieces(self, y: Tensor) -> float:
        return recommendation.pieces(y)

    def masks_that_matter(self, y: Tensor) -> float:
        """A mask of the row matters at a like alone, and each like has its own."""
        return 1 / y.shape[1]

    def measures(
        self, samples: Float[Tensor, "samples batch *outputs"], y: Tensor, model: nn.Module, unit: float
    ) -> dict[str, float]:
        return recommendation.measures(samples.mean(0), y)


KINDS = {"classification": TaskKind(), "regression": Regression(), "language": Language(), "ranking": Ranking()}
