"""Which process this is, where it works, what it takes of a batch, and what is refused; all without a second one."""

from typing import Any

import pytest
import torch
from torch import nn

from experiments.vision.train import _Share
from lbdrop import DropoutError, LearnableDropout, Objective
from lbdrop.guards import processes


def started(monkeypatch: pytest.MonkeyPatch, rank: int, ranks: int, gpus: int = 0) -> None:
    """As torchrun starts a process."""
    for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)


def test_process_outside_torchrun_is_the_only_one_and_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert (processes.count(), processes.rank(), processes.is_first()) == (1, 0, True)
    assert processes.device_of_this_process("cpu") == torch.device("cpu")


def test_device_of_each_process_is_another_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, 1, 2, gpus=2)
    assert (processes.count(), processes.rank(), processes.is_first()) == (2, 1, False)
    assert processes.device_of_this_process() == torch.device("cuda", 1)
    assert processes.device_of_this_process("cpu") == torch.device("cpu")
    started(monkeypatch, 2, 3, gpus=2)
    with pytest.raises(
        DropoutError, match="at most one for each of the 2 GPUs of this machine, got number 3; start fewer"
    ):
        processes.device_of_this_process()


def test_shares_of_a_batch_are_disjoint_and_whole() -> None:
    batches = [(torch.arange(6), torch.arange(6) * 10), (torch.arange(6, 12), torch.arange(6, 12) * 10)]
    shares = [list(_Share(batches, rank, 3)) for rank in range(3)]
    for place, (x, _) in enumerate(batches):
        taken = torch.cat([share[place][0] for share in shares])
        assert taken.sort().values.equal(x)
    assert all((y == 10 * x).all() for share in shares for x, y in share)


def test_batch_that_processes_cannot_share_is_refused() -> None:
    with pytest.raises(DropoutError, match="want a multiple of the 2 processes, .* got a batch of 5; change the batch"):
        list(_Share([(torch.zeros(5), torch.zeros(5))], 0, 2))


def test_step_takes_the_place_of_the_wrapped_forward_pass_and_leaves_the_model_as_it_was() -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module):
            super().__init__()
            self.module, self.calls = module, 0

        def forward(self, *inputs: Any) -> Any:
            self.calls += 1
            return self.module(*inputs)

    inner = nn.Linear(2, 2)
    wrapper, x = Wrapper(inner), torch.ones(1, 2)
    assert processes.call_through_wrapper(wrapper, lambda: inner(x)).equal(inner(x))
    assert wrapper.calls == 1
    assert "forward" not in vars(inner)
    with pytest.raises(ZeroDivisionError):
        processes.call_through_wrapper(wrapper, lambda: 1 / 0)
    assert inner(x).shape == (1, 2)
    with torch.no_grad():  # nothing to average, so nobody to wait for
        processes.call_through_wrapper(wrapper, lambda: inner(x))
    assert wrapper.calls == 2


class Together(nn.SyncBatchNorm):
    """As torch's, which runs on GPUs alone."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(input, None, None, self.weight, self.bias, training=True)


def test_statistics_over_processes_behind_a_dropout_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, 0, 2)
    model = nn.Sequential(nn.Linear(3, 4), LearnableDropout(4), Together(4), nn.Linear(4, 1))
    with pytest.raises(DropoutError, match="2: want no SyncBatchNorm behind a dropout, .* use LayerNorm or GroupNorm"):
        Objective(model, examples=10)(lambda m: m(torch.randn(5, 3)).square().sum(1))
