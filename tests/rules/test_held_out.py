"""Held-out data: batches without end, in any structure, whose examples join training at their share."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lbdrop import DropoutError
from lbdrop.rules.held_out import HeldOut

LIKE = torch.zeros(())


def held_out(batches: Any) -> HeldOut:
    result = HeldOut(batches, LIKE)
    result.count()
    return result


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter([torch.arange(3), torch.arange(3, 5)])


def test_batches_come_again_and_again_and_looking_ahead_takes_none() -> None:
    data = HeldOut([torch.tensor([1, 2]), [torch.tensor([3])]], LIKE)
    assert [data.ahead(count)[0].tolist() for count in (2, 0, 1)] == [[1, 2], [1, 2], [3]]
    assert [data.next()[0].tolist() for _ in range(3)] == [[1, 2], [3], [1, 2]]
    assert data.peek()[0].tolist() == [3]
    data.restart()
    assert data.next()[0].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("batches", "distinct"),
    [
        ([(torch.arange(3),), (torch.arange(3, 5),)], 2),
        (DataLoader(TensorDataset(torch.arange(5)), batch_size=3), 2),
        (DataLoader(Stream(), batch_size=None), math.inf),
    ],
)
def test_examples_are_released_each_once_before_any_comes_again(batches: Any, distinct: float) -> None:
    data = held_out(batches)
    assert data.distinct == distinct
    mixed = torch.cat([data.mixed((torch.full((2,), -1),), examples=15)[0] for _ in range(20)])  # 5 of 20 are held out
    assert len(mixed) == 40
    assert Counter(mixed[mixed >= 0].tolist()) == dict.fromkeys(range(5), 2)


def test_batch_is_left_alone_until_a_whole_example_is_due() -> None:
    data, batch = held_out([(torch.tensor([7, 8]),)]), (torch.arange(4),)
    assert data.mixed(batch, examples=10)[0].tolist() == [0, 1, 2, 3]  # 2/3 of one
    assert data.mixed(batch, examples=10)[0].tolist() == [1, 2, 3, 7]


def test_dictionaries_are_mixed_as_tuples_are() -> None:
    def batch(*values: int) -> tuple[dict[str, Tensor], Tensor]:
        return {"ids": torch.tensor(values)}, torch.tensor(values) % 2

    data = held_out([batch(7, 8)])
    inputs, labels = data.mixed(batch(0, 1, 2, 3), examples=2)
    assert inputs["ids"].tolist() == [2, 3, 7, 8]
    assert labels.tolist() == [0, 1, 1, 0]
    with pytest.raises(DropoutError, match="2 tensors in another structure than those of training; pass examples=None"):
        data.check_like((torch.arange(4), torch.arange(4)))


def test_graphs_whose_tensors_have_no_row_for_each_example_are_refused_and_not_cut() -> None:
    nodes, edges, labels = torch.randn(5, 3), torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.arange(5)
    graph = (nodes, edges, labels)
    with pytest.raises(
        DropoutError,
        match=r"tensors of \[5, 2, 5\] rows, which are not one for each example.* pass examples=None to keep",
    ):
        held_out([graph]).check_like(graph)


def test_later_batches_in_another_structure_are_refused() -> None:
    data, batch = held_out([(torch.arange(2),), (torch.arange(2), torch.arange(2))]), (torch.arange(4),)
    data.check_like(batch)
    with pytest.raises(DropoutError, match="2 tensors in another structure than those of training"):
        for _ in range(2):
            data.mixed(batch, examples=2)


def test_batches_without_tensors_have_no_size_and_cannot_be_counted() -> None:
    data = HeldOut([("text",)], LIKE)
    with pytest.raises(DropoutError, match="held_out: want batches of tensors, got none in one; pass examples=None"):
        data.count()
