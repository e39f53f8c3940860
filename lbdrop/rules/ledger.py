"""What :class:`~lbdrop.rules.balanced.Balanced` has compared so far: part of the model's state, for a resumed run."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["Ledger"]

# Steps, looks, whether it was judged and is settled; numbers of :func:`lbdrop.rules.balance.sums_of`, of
# :func:`lbdrop.rules.trial.shift_of`, and of each rate's noise alone: cost and odds.
COUNTS, COMPARED, SHIFT, ALONE = 4, 6, 3, 2


class Ledger(nn.Module):
    """Sums over the latest looks, and how many steps were taken. Not moved or rounded with the model.

    Args:
        rates: how many rates there are.
    """

    def __init__(self, rates: int):
        super().__init__()
        self.rates, self.steps, self.looks = rates, 0, 0
        self.judged = self.settled = False
        self.compared: Float[Tensor, "6"] = torch.zeros(COMPARED, dtype=torch.float64)
        self.shift: Float[Tensor, "3"] = torch.zeros(SHIFT, dtype=torch.float64)
        self.alone: Float[Tensor, "2 rates"] = torch.zeros(ALONE, rates, dtype=torch.float64)

    def to_device(self, device: torch.device) -> None:
        """Sums are kept where losses are, so that no step waits for them."""
        self.compared, self.shift, self.alone = (e.to(device) for e in (self.compared, self.shift, self.alone))

    def get_extra_state(self) -> Tensor:
        counts = self.compared.new_tensor([self.steps, self.looks, self.judged, self.settled])
        return torch.cat([counts, self.compared, self.shift.to(counts), self.alone.to(counts).flatten()])

    def set_extra_state(self, state: Tensor) -> None:
        sizes = [COUNTS, COMPARED, SHIFT, len(state) - COUNTS - COMPARED - SHIFT]
        counts, self.compared, self.shift, alone = state.clone().split(sizes)
        self.steps, self.looks, judged, settled = (int(each) for each in counts)
        self.judged, self.settled = bool(judged), bool(settled)
        self.alone = alone.view(ALONE, -1)
        self.rates = self.alone.shape[1]

    @classmethod
    def like(cls, state: Tensor) -> "Ledger":
        """One that such a state fits."""
        return cls((len(state) - COUNTS - COMPARED - SHIFT) // ALONE)
