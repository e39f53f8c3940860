"""What a model holds, and whether it changed."""

from torch import Tensor, nn
from torch.testing import assert_close


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_unchanged(model: nn.Module, before: dict[str, Tensor]) -> None:
    for name, value in model.state_dict().items():
        assert_close(value, before[name], rtol=0, atol=0, equal_nan=True, msg=name)
