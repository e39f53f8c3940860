r"""The measures as torchmetrics: update with batches, compute once, over any number of processes.

$$ \text{compute}\big(\text{update}(B_1), \dots, \text{update}(B_n)\big) = \text{function}(B_1 \cup \dots \cup B_n) $$

Sums where the measure is a sum, kept scores where it needs all of them at once (a rank, or the mean entropy as
threshold): four bytes each for score and correctness, ``compute_on_cpu=True`` keeps them off the accelerator. Classifiers
are updated with ``(probs, labels)``, so one ``MetricCollection`` serves them all; every ``compute`` is a dict of
scalars, as Lightning's ``log_dict`` takes it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.metrics import calibration, detection, pavpu, regression, segmentation
from lbdrop.metrics.predictions import check_probabilities, check_scores, flatten, judge

try:
    from torchmetrics import Metric
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "lbdrop.metrics.streams needs torchmetrics; install it with pip install 'lbdrop[vision]', or use the functions"
        " of lbdrop.metrics",
        name=error.name,
    ) from error

__all__ = [
    "Calibration",
    "EntropyRange",
    "MeanIoU",
    "Misclassification",
    "OutOfDistribution",
    "PAvPU",
    "PatchPAvPU",
    "Regression",
]

Scalars = dict[str, Tensor]


class _Stream(Metric):
    is_differentiable = False
    full_state_update = False  # so that forward, too, costs one update

    def _sums(self, **sizes: tuple[int, ...]) -> None:
        for name, size in sizes.items():
            self.add_state(name, torch.zeros(size, dtype=torch.float64), dist_reduce_fx="sum")


class _Kept(_Stream):
    """Keeps a score and a yes or no for everything seen."""

    score: list[Tensor]
    flag: list[Tensor]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_state("score", [], dist_reduce_fx="cat")
        self.add_state("flag", [], dist_reduce_fx="cat")

    def _keep(self, score: Tensor, flag: Tensor) -> None:
        # Both of the metric's own type: that is what a process without data contributes to the gathering.
        self.score.append(score.detach().to(self.dtype))
        self.flag.append(flag.to(self.dtype))

    def _all(self) -> tuple[Tensor, Tensor]:
        score, flag = (torch.cat([s, *rest]) if (s := _first(x)) is not None else None for x in (self.score, self.flag) for rest in [x[1:]])
        return score, flag
