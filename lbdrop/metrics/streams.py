r"""Measures of uncertainty that torchmetrics lacks, as its classes: update with batches, compute once, over any processes.

$$ \text{compute}\big(\text{update}(B_1), \dots, \text{update}(B_n)\big) = \text{function}(B_1 \cup \dots \cup B_n) $$

A measure that is a sum stores sums. A measure that needs all scores at once (a rank, or the mean entropy as threshold) stores
them: four bytes each for score and correctness; ``compute_on_cpu=True`` keeps them on the host. Classifiers are updated with
``(probs, labels)``, so one ``MetricCollection`` can hold them all. Every ``compute`` returns a dict of scalars, as Lightning's
``log_dict`` takes it.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lbdrop.errors import DropoutError
from lbdrop.metrics import detection, pavpu
from lbdrop.metrics.predictions import check_scores, judge

try:
    from torchmetrics import Metric
    from torchmetrics.utilities import dim_zero_cat
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "lbdrop.metrics.streams needs torchmetrics; install it with pip install 'lbdrop[vision]', or use the functions"
        " of lbdrop.metrics",
        name=error.name,
    ) from error

__all__ = ["EntropyRange", "Misclassification", "PAvPU", "PatchPAvPU", "Stream"]

Scalars = dict[str, Tensor]
Probs = Float[Tensor, "batch classes *space"]
Labels = Int[Tensor, "batch *space"]
Score = Float[Tensor, "batch *space"]
Bound = float | Float[Tensor, ""]


class Stream(Metric):
    """A measure that several processes compute together."""

    is_differentiable = False
    full_state_update = False  # so that forward calls update once

    def add_sums(self, *names: str, shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float64) -> None:
        # In double precision, so that small terms are not lost in a large sum.
        for name in names:
            self.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")


class _Judgements(Stream):
    """Takes uncertainty and correctness of each example, each pixel that is not void, or each window of pixels."""

    def __init__(self, window: int | None = None, void: int | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.window, self.void = window, void

    def update(self, probs: Probs, labels: Labels, score: Score | None = None) -> None:
        """Add a batch; ``score``, such as the mutual information, replaces the entropy of ``probs``."""
        judged = judge(probs, labels, self.void)
        score = judged.entropy if score is None else score
        check_scores(score, judged.correct)
        if self.window is not None:
            return self.add(*pavpu.patches(score, judged.correct, self.window, judged.valid))
        return self.add(score[judged.valid], judged.correct[judged.valid])

    def add(self, score: Tensor, correct: Tensor) -> None:
        raise NotImplementedError


class EntropyRange(_Judgements):
    """The smallest and the largest entropy: of examples, of pixels, or of patches if ``window`` is given.

    On the validation set these are the ends of the sweep: ``PAvPU(**entropy_range.compute())``.
    """

    lowest: Tensor
    highest: Tensor

    def __init__(self, window: int | None = None, void: int | None = None, **settings: Any) -> None:
        super().__init__(window, void, **settings)
        self.add_state("lowest", torch.tensor(torch.inf), dist_reduce_fx="min")
        self.add_state("highest", torch.tensor(-torch.inf), dist_reduce_fx="max")

    def add(self, score: Tensor, correct: Tensor) -> None:
        self.lowest = torch.cat([self.lowest[None], score.to(self.lowest)]).min()
        self.highest = torch.cat([self.highest[None], score.to(self.highest)]).max()

    def compute(self) -> Scalars:
        return {"lowest": self.lowest, "highest": self.highest}


class _Stored(_Judgements):
    """Keeps them all."""

    score: list[Tensor]
    flag: list[Tensor]

    def __init__(self, window: int | None = None, void: int | None = None, **settings: Any) -> None:
        super().__init__(window, void, **settings)
        self.add_state("score", [], dist_reduce_fx="cat")
        self.add_state("flag", [], dist_reduce_fx="cat")

    def add(self, score: Tensor, correct: Tensor) -> None:
        # Both in the metric's own type, in which a process without data adds an empty tensor.
        self.score.append(score.detach().to(self.dtype))
        self.flag.append(correct.to(self.dtype))

    def all(self) -> tuple[Tensor, Tensor]:
        if not len(self.score):
            raise DropoutError("compute: want at least one batch, got none; call update first")
        return dim_zero_cat(self.score), dim_zero_cat(self.flag).bool()


class PAvPU(_Stored):
    """PAvPU of single predictions, divided by the number of examples, or of pixels that are not void.

    ``lowest`` and ``highest`` are the validation set's, see :class:`EntropyRange`. With ``window`` it is that of windows of
    window × window pixels, divided by the number of windows that are not all void.
    """

    higher_is_better = True

    def __init__(
        self, lowest: Bound, highest: Bound, steps: int = pavpu.STEPS, void: int | None = None, window: int | None = None,
        **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__(window, void, **settings)
        self.thresholds = pavpu.sweep(float(lowest), float(highest), steps)

    def compute(self) -> Scalars:
        """PAvPU at the mean entropy of all predictions, averaged over the sweep, and at each of its steps."""
        entropy, correct = self.all()
        curve = pavpu.pavpu_counts(entropy, correct, self.thresholds).pavpu
        steps = {f"pavpu_t{i / (len(curve) - 1):.3g}": value for i, value in enumerate(curve)}
        at_mean = pavpu.pavpu_at_mean_entropy(entropy, correct)
        return {"pavpu_at_mean_entropy": at_mean, "pavpu_over_sweep": curve.mean(), **steps}


class PatchPAvPU(PAvPU):
    """The same of the paper's windows of 2 × 2 pixels, or of others."""

    def __init__(
        self, lowest: Bound, highest: Bound, steps: int = pavpu.STEPS, window: int = pavpu.WINDOW, void: int | None = None,
        **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__(lowest, highest, steps, void, window, **settings)


class Misclassification(_Stored):
    """AUROC of finding mistakes, divided by (wrong, right) pairs, and AURC, averaged over coverages; void left out."""

    def __init__(self, void: int | None = None, **settings: Any) -> None:
        super().__init__(None, void, **settings)

    def compute(self) -> Scalars:
        score, correct = self.all()
        found = detection.misclassification_auroc(score, correct)
        return {"misclassification_auroc": found, "aurc": detection.aurc(score, correct)}
