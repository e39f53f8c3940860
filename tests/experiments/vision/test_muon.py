"""Muon moves every singular direction by the same length, whatever the layout and however many kernels there are."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from experiments.networks.tiramisu import FCDenseNet, Plan, dense_kernels
from experiments.vision.muon import Muon, orthogonal
from experiments.vision.segment import SegmentationSchedule, Segmenter
from lbdrop.errors import DropoutError


def kernels(*widths: int, rows: int = 4, seed: int = 0) -> list[nn.Parameter]:
    """With gradients."""
    generator = torch.Generator().manual_seed(seed)
    made = [nn.Parameter(torch.randn(rows, width, 3, 3, generator=generator)) for width in widths]
    for p in made:
        p.grad = torch.randn(p.shape, generator=generator)
    return made


def test_singular_values_become_about_one_and_their_directions_stay() -> None:
    spread = torch.logspace(0, -1, 8)[:, None]
    batch = spread * torch.randn(3, 8, 50, generator=torch.Generator().manual_seed(0))
    found = orthogonal(batch)
    values = torch.linalg.svdvals(found)
    assert 0.6 < float(values.min()) < float(values.max()) < 1.3
    u, _, v = torch.linalg.svd(batch, full_matrices=False)
    inside = u.mT @ found @ v.mT
    assert torch.allclose(inside, torch.diag_embed(inside.diagonal(dim1=1, dim2=2)), atol=1e-3)


def test_zeros_stay_zeros() -> None:
    assert torch.equal(orthogonal(torch.zeros(2, 3, 5)), torch.zeros(2, 3, 5))


def test_step_is_the_formula() -> None:
    (p,) = kernels(2)
    before, seen = p.detach().clone(), []
    optimizer = Muon([p], lr=0.1, momentum=0.9, weight_decay=0.5)
    moment = torch.zeros_like(p)
    for step in range(3):
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step))
        moment = 0.9 * moment + 0.1 * p.grad
        change = orthogonal((0.1 * p.grad + 0.9 * moment).flatten(1)[None])[0].view_as(p)
        before = (1 - 0.1 * 0.5) * before - 0.1 * change
        optimizer.step()
        seen.append(p.detach().clone())
        assert torch.allclose(p, before, atol=1e-5)
    assert not torch.equal(seen[0], seen[1])


def test_kernels_of_several_widths_move_as_each_would_alone() -> None:
    together, alone = kernels(2, 7, 1), kernels(2, 7, 1)
    Muon(together).step()
    for p in alone:
        Muon([p]).step()
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(together, alone, strict=True))


@pytest.mark.parametrize("gradient_too", [True, False])
def test_layout_of_kernels_and_gradients_changes_nothing(gradient_too: bool) -> None:
    (plain,), (other,) = kernels(5), kernels(5)
    gradient = other.grad
    assert gradient is not None
    other.data = other.data.to(memory_format=torch.channels_last)
    other.grad = gradient.to(memory_format=torch.channels_last) if gradient_too else gradient
    for p in (plain, other):
        Muon([p]).step()
    assert torch.allclose(plain, other, atol=1e-6)
    assert other.is_contiguous(memory_format=torch.channels_last)


def test_state_of_another_layout_is_loaded_correctly() -> None:
    (plain,), (other,) = kernels(5), kernels(5)
    first, second = Muon([plain]), Muon([other])
    first.step()
    other.data = plain.data.to(memory_format=torch.channels_last)
    second.load_state_dict(deepcopy(first.state_dict()))
    for p, optimizer in ((plain, first), (other, second)):
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(9))
        optimizer.step()
    assert torch.allclose(plain, other, atol=1e-6)


def test_learning_rate_may_be_a_tensor_groups_several_and_gradients_missing() -> None:
    numbers, tensors = kernels(2, 3, 4), kernels(2, 3, 4)
    for made in (numbers, tensors):
        made[2].grad = None
    still = numbers[2].detach().clone()
    Muon([{"params": numbers[:1], "lr": 0.3}, {"params": numbers[1:]}], lr=0.1).step()
    of_each = [{"params": tensors[:1], "lr": torch.tensor(0.3)}, {"params": tensors[1:], "lr": torch.tensor(0.1)}]
    Muon(of_each).step()
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(numbers, tensors, strict=True))
    assert torch.equal(numbers[2], still)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_orthogonalised_in_single(dtype: torch.dtype) -> None:
    batch = torch.randn(2, 4, 30, generator=torch.Generator().manual_seed(0)).to(dtype)
    batch[1] = 0
    assert torch.equal(orthogonal(batch), orthogonal(batch.float()).to(dtype))
    assert torch.equal(orthogonal(batch)[1], torch.zeros(4, 30, dtype=dtype))


@pytest.mark.parametrize("shape", [(9, 8), (5,), (0, 3)])
def test_narrow_kernel_is_refused_at_any_time(shape: tuple[int, ...]) -> None:
    wrong = nn.Parameter(torch.zeros(shape))
    optimizer = Muon([nn.Parameter(torch.zeros(2, 3))])
    for given in (lambda: Muon([wrong]), lambda: optimizer.add_param_group({"params": [wrong]})):
        with pytest.raises(DropoutError, match=r"no more rows than columns, got one of shape .*; leave it to AdamW"):
            given()


def test_network_without_dense_layers_is_refused() -> None:
    schedule = SegmentationSchedule(1, 1e-3, 1e-3, optimizer="muon")
    with pytest.raises(DropoutError, match="want a network with dense layers for muon, got one without"):
        Segmenter(nn.Sequential(nn.Conv2d(3, 4, 3)), None, schedule, 1, 0).configure_optimizers()


def test_dense_kernels_are_muons_and_all_else_is_adamws() -> None:
    network = FCDenseNet(plan=Plan((1, 1, 1, 1, 1), 2, 4))
    schedule = SegmentationSchedule(1, 1e-3, 1e-3, optimizer="muon", weight_decay=1e-4, kernel_lr=0.3, kernel_decay=0.2)
    adamw, muon = Segmenter(network, None, schedule, 1, 0).configure_optimizers()

    def names(optimizer: torch.optim.Optimizer) -> set[str]:
        own: set[Tensor] = {p for group in optimizer.param_groups for p in group["params"]}
        return {name for name, p in network.named_parameters() if p in own}

    assert len(dense_kernels(network)) == len(names(muon)) == 12
    assert all(".layers." in name and name.endswith("conv.weight") for name in names(muon))
    assert names(adamw) | names(muon) == {name for name, _ in network.named_parameters()}
    assert not names(adamw) & names(muon)
    assert muon.param_groups[0]["lr"] == muon.param_groups[0]["base_lr"] == 0.3
    assert muon.param_groups[0]["weight_decay"] == 0.2
    assert adamw.param_groups[0]["weight_decay"] == 1e-4
