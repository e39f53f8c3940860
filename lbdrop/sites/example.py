"""One pass of a model on an example: what it reaches, what it computes, and whether anything in it is random."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lbdrop._torch import OperationMode, tree_flatten
from lbdrop.guards.snapshot import Snapshot
from lbdrop.sites.calls import innermost_module

__all__ = ["Example", "example_pass", "random_draws", "same_outputs", "undisturbed"]

Run = Callable[[], Any]


class Example(NamedTuple):
    """A pass over a model, or over the parts of it that offer an example of their own."""

    run: Run
    parts: list[str]
    """The names of what it runs, "" for the whole model."""

    def covers(self, name: str) -> bool:
        """Whether a module of this name would be called, if anything called it."""
        return any(not part or name.startswith(f"{part}.") for part in self.parts)


def example_pass(model: nn.Module, example: Any) -> Example | None:
    """A pass on the user's example, or on those that the model or parts of it offer; ``None`` where there is none.

    Models of ``transformers`` have ``dummy_inputs``, or images as their ``main_input_name`` and an image size in their config.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if example is not None:
        return Example(_call(model, example, device), [""])
    offers: dict[str, Run] = {}
    for name, module in model.named_modules():
        if any(not outer or name.startswith(f"{outer}.") for outer in offers):
            continue
        if (offered := _offered(module)) is not None:
            offers[name] = _call(module, offered, device)
    return Example(lambda: [run() for run in offers.values()], list(offers)) if offers else None


def _call(module: nn.Module, example: Any, device: torch.device) -> Run:
    def there(value: Any) -> Any:
        return value.to(device) if isinstance(value, Tensor) else value

    if isinstance(example, Mapping):
        named = {key: there(value) for key, value in example.items()}
        return lambda: module(**named)
    values = [there(value) for value in (example if isinstance(example, tuple) else (example,))]
    return lambda: module(*values)


def _offered(model: nn.Module) -> Mapping[str, Tensor] | None:
    config: Any = getattr(model, "config", None)
    if getattr(model, "main_input_name", "") == "pixel_values" and hasattr(config, "image_size"):
        size = config.image_size
        sides = size if isinstance(size, list | tuple) else (size, size)
        return {"pixel_values": torch.zeros(2, getattr(config, "num_channels", 3), *sides)}
    offered = getattr(model, "dummy_inputs", None)
    return offered if isinstance(offered, Mapping) else None


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Buffers, tensors that are attributes, modes and the random state are afterwards what they were."""
    before = Snapshot(model)
    modes = [(module, module.training) for module in model.modules()]
    devices = {p.device for p in model.parameters() if p.is_cuda}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        for module, training in modes:
            module.training = training
        before.restore()


def same_outputs(before: Any, after: Any) -> bool:
    """Whether two passes computed the same, to 1e-5 of the largest finite number."""
    a, b = ([each for each in tree_flatten(tree)[0] if isinstance(each, Tensor)] for tree in (before, after))
    return len(a) == len(b) and all(map(_same_tensors, a, b))


def _same_tensors(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if not a.is_floating_point() or not a.numel():
        return True
    return torch.allclose(a.double(), b.double(), rtol=0, atol=_tolerance(a), equal_nan=True)


def _tolerance(values: Tensor) -> float:
    return 1e-5 * float(values.double().abs().nan_to_num(0.0, posinf=0.0).max()) + 1e-12


class _RandomOperations(OperationMode):
    """Notes every operation that draws, below autograd: whatever was called, it ends here."""

    def __init__(self, names: Mapping[nn.Module, str]):
        super().__init__()
        self.names, self.found = names, []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        before = _random_states()
        output = func(*args, **kwargs)
        if _random_states() != before:  # attention without dropout may draw, and does not
            module = innermost_module()
            where = self.names.get(module, "") if module is not None else ""
            self.found.append(f"{where or 'the model'} ({type(module).__name__}: {func.__name__})")
        return output


def _random_states() -> list[bytes]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_available():
        states += torch.cuda.get_rng_state_all()
    return [state.numpy().tobytes() for state in states]


def random_draws(model: nn.Module, run: Run) -> tuple[Any, list[str]]:
    """The output of a training pass, and its draws, each by its module and operation."""
    with undisturbed(model), _RandomOperations({module: name for name, module in model.named_modules()}) as operations:
        model.train()
        output = run()
    return output, list(dict.fromkeys(operations.found))
