"""Checkpoints between a model and what ``convert`` made of it."""

from collections.abc import Mapping

from torch import Tensor, nn

from lbdrop.errors import DropoutError

__all__ = ["load_weights"]


def load_weights(model: nn.Module, state: Mapping[str, Tensor]) -> list[str]:
    """Load a checkpoint, whether it, the model, both or none have been converted: weights always, rates where both have them.

    Returns the names of the rates that only one of them has: the model's stay what they are, the checkpoint's are left out.

    Args:
        model: the network that the checkpoint is of, converted or not.
        state: what ``state_dict()`` gave.

    Example:
        >>> plain = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.1))
        >>> state = plain.state_dict()
        >>> load_weights(lbdrop.convert(plain, verbose=False), state)
        ['1.logit']
    """
    here = set(model.state_dict())
    rates = sorted(name for name in here ^ set(state) if name.rpartition(".")[2] == "logit")
    if others := sorted((here ^ set(state)) - set(rates)):
        raise DropoutError(
            f"state: want that of the same network, which differs in rates at most, got {len(others)} other names that only"
            f" one of them has, such as {', '.join(others[:4])}; load it into the network that it was saved from"
        )
    model.load_state_dict({name: value for name, value in state.items() if name not in rates}, strict=False)
    return rates
