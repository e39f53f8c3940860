r"""The paper's bound: the expected loss under Bernoulli masks plus their KL.

$$ \mathcal{L} = \frac1M \sum_{i=1}^{M} \mathbb{E}_{z_i}\big[\mathcal{E}_i(z_i)\big] + \frac1N\,\mathrm{KL} $$

is the paper's equation 3 divided by $N$.
"""

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor, nn

from lbdrop.dropout import NoiseLayer
from lbdrop.errors import DropoutError
from lbdrop.rules.evaluation import Evaluation
from lbdrop.rules.priors import total_kl
from lbdrop.sites.graph import neighbours

__all__ = ["Bound"]


class Bound:
    """The paper's objective: the expected loss plus the KL of the masks, in units of loss per example.

    Args:
        model: the converted model.
        examples: how many examples the training set has, the paper's N.
        s: standard deviation of the Gaussian prior on the weights that a dropped unit feeds.
        prior_keep: keep rate of the Bernoulli prior, for dropouts that feed no weights that are known.
        weight: multiplies the KL; 1 is the bound itself, 0 the training loss alone. Where an example's loss is a mean over
            tokens or pixels, the bound's is one over their number.
    """

    def __init__(self, model: nn.Module, examples: int, s: float = 1.0, prior_keep: float = 0.5, weight: float = 1.0):
        if not isinstance(examples, int) or examples < 1:
            raise DropoutError(f"examples: want the size of the training set, at least 1, got {examples}")
        if s <= 0 or not 0 < prior_keep < 1 or weight < 0:
            raise DropoutError(
                f"prior: want s > 0, prior_keep in (0, 1) and weight ≥ 0, got s={s}, prior_keep={prior_keep},"
                f" weight={weight}"
            )
        self.examples, self.s, self.prior_keep, self.weight = examples, s, prior_keep, weight
        self.report: dict[str, Tensor] = {}
        self.consumers = {
            name: [model.get_submodule(consumer) for consumer in found.consumers]
            for name, found in neighbours(model).items()
        }

    def loss(self, evaluation: Evaluation) -> Float[Tensor, ""]:
        expected = evaluation.losses().mean()
        if not self.weight:
            return expected
        kl = self.weight / self.examples * self.kl(evaluation.layers)
        self.report = {"kl": kl.detach()}
        return expected + kl

    def kl(self, layers: Mapping[str, NoiseLayer]) -> Float[Tensor, ""]:
        """The KL of all layers, never below 0."""
        return total_kl(layers, self.consumers, self.s, self.prior_keep)

    def __repr__(self) -> str:
        priors = {name: f"Gaussian, s={self.s}" if found else f"Bernoulli, keep={self.prior_keep}"
                  for name, found in self.consumers.items()}  # fmt: skip
        return f"Bound(examples={self.examples}, weight={self.weight}, priors={priors})"
