"""Masks as numbers: what a comparison says, however it is asked."""

import pytest
import torch

from lbdrop._torch import indicator


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("compare", [torch.lt, torch.gt, torch.ge, torch.ne])
def test_an_indicator_is_the_comparison_in_the_precision_of_its_values(compare, dtype) -> None:
    values = torch.tensor([[0.0, 0.5, 1.0], [-0.0, float("nan"), float("inf")]], dtype=dtype)
    thresholds = torch.tensor([0.5, 0.5, 2.0])
    found = indicator(compare, values, thresholds)
    assert found.dtype == dtype
    assert torch.equal(found, compare(values, thresholds).to(dtype))


def test_an_indicator_leaves_its_values_and_has_no_gradient() -> None:
    values, threshold = torch.rand(4, 3), torch.tensor(0.5, requires_grad=True)
    before = values.clone()
    assert not indicator(torch.lt, values, threshold).requires_grad
    assert torch.equal(values, before)


def test_an_indicator_works_under_vmap_whichever_side_has_the_lanes() -> None:
    values, thresholds = torch.rand(5, 3), torch.rand(4)
    wanted = (values < thresholds[:, None, None]).float()
    found = torch.func.vmap(lambda threshold: indicator(torch.lt, values, threshold))(thresholds)
    assert torch.equal(found, wanted)
