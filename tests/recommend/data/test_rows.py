"""Batches of rows on the device equal the matrix."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, random_array, vstack

from lbdrop.errors import DropoutError
from lbdrop.recommend.data import rows as module
from lbdrop.recommend.data.rows import Batch, Rows


@pytest.fixture
def matrix() -> csr_array:
    drawn = random_array((23, 11), density=0.3, rng=np.random.default_rng(0), format="csr", dtype=np.float32)
    drawn = csr_array(drawn.toarray() * (np.arange(23) % 7 != 3)[:, None])  # some users have nothing
    return csr_array(drawn)


def written_out(batches: list[Batch]) -> np.ndarray:
    return np.concatenate([batch.dense().numpy() for batch in batches])


@pytest.mark.parametrize("size", [1, 4, 23, 50])
@pytest.mark.parametrize("window", [1, 20, 4_000_000])
def test_batches_in_order_equal_the_binary_matrix(
    matrix: csr_array, size: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WINDOW", window)
    batches = list(Rows.from_csr(matrix).batches(size, shuffle=False))
    assert np.array_equal(written_out(batches), (matrix.toarray() != 0).astype(np.float32))
    assert len(batches) == Rows.from_csr(matrix).steps(size) == -(-23 // size)
    assert [batch.size for batch in batches] == [min(size, 23 - a) for a in range(0, 23, size)]


@pytest.mark.parametrize("window", [1, 30, 4_000_000])
def test_shuffled_epoch_equals_the_permuted_matrix_of_scipy(
    matrix: csr_array, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WINDOW", window)
    batches = list(
        Rows.from_csr(matrix, values=True).batches(5, shuffle=True, generator=torch.Generator().manual_seed(3))
    )
    order = torch.cat([batch.number for batch in batches]).numpy()
    assert sorted(order) == list(range(23))
    assert list(order) != list(range(23))
    permuted = matrix[order]
    assert np.array_equal(torch.cat([batch.item for batch in batches]).numpy(), permuted.indices)
    assert np.array_equal(written_out(batches), permuted.toarray())
    assert np.array_equal(torch.cat([batch.counts for batch in batches]).numpy(), np.diff(permuted.indptr))


def test_offsets_work_with_embedding_bag(matrix: csr_array) -> None:
    table = torch.randn(11, 3, generator=torch.Generator().manual_seed(0))
    for batch in Rows.from_csr(matrix).batches(4, shuffle=True, generator=torch.Generator().manual_seed(0)):
        summed = torch.nn.functional.embedding_bag(batch.item, table, batch.offsets, mode="sum")
        torch.testing.assert_close(summed, batch.dense() @ table)
        assert batch.user.equal(torch.repeat_interleave(batch.counts.long()))


def test_same_seed_draws_the_same_epochs_and_each_epoch_differs(matrix: csr_array) -> None:
    def epochs(seed: int) -> list[list[int]]:
        rows, generator = Rows.from_csr(matrix), torch.Generator().manual_seed(seed)
        return [
            torch.cat([b.number for b in rows.batches(4, shuffle=True, generator=generator)]).tolist() for _ in range(2)
        ]

    first = epochs(7)
    assert first == epochs(7)
    assert first[0] != first[1]
    assert first != epochs(8)


@pytest.mark.parametrize("ranks", [2, 3])
def test_processes_share_an_epoch_without_overlap_in_equally_many_steps(matrix: csr_array, ranks: int) -> None:
    rows = Rows.from_csr(matrix)
    shares = [
        list(rows.batches(4, shuffle=True, generator=torch.Generator().manual_seed(1), rank=rank, ranks=ranks))
        for rank in range(ranks)
    ]
    seen = [int(number) for share in shares for batch in share for number in batch.number]
    assert len(seen) == len(set(seen)) > 23 - ranks
    assert {len(share) for share in shares} == {rows.steps(4, ranks)}


def test_dense_rows_of_several_masks_pass_gradients(matrix: csr_array) -> None:
    batch = Rows.from_csr(matrix).batch([5, 0, 5])
    values = torch.randn(2, len(batch.item), requires_grad=True)
    dense = batch.dense(values)
    assert dense.shape == (2, 3, 11)
    for n in range(2):
        for entry, (user, item) in enumerate(zip(batch.user.tolist(), batch.item.tolist(), strict=True)):
            assert dense[n, user, item] == values[n, entry]
    assert int((dense != 0).sum()) == values.numel()
    weight = torch.randn(2, 3, 11)
    (dense * weight).sum().backward()
    assert values.grad is not None
    assert values.grad.equal(weight[:, batch.user, batch.item])


def test_selected_rows_keep_their_order(matrix: csr_array) -> None:
    batch = Rows.from_csr(matrix).batch(np.array([9, 3, 9, 1]))
    assert np.array_equal(batch.dense().numpy(), (matrix[[9, 3, 9, 1]].toarray() != 0).astype(np.float32))
    assert batch.number.tolist() == [9, 3, 9, 1]
    assert Rows.from_csr(matrix).batch([]).size == 0
    with pytest.raises(DropoutError, match="row numbers from 0 to 22, got 1 to 23"):
        Rows.from_csr(matrix).batch([1, 23])


def test_explicit_zeros_and_duplicates_are_removed() -> None:
    matrix = csr_array((np.array([1.0, 2.0, 0.0]), np.array([2, 2, 0]), np.array([0, 2, 3])), shape=(2, 3))
    rows = Rows.from_csr(matrix, values=True)
    assert rows.entries == 1
    assert rows.batch([0, 1]).dense().tolist() == [[0, 0, 3], [0, 0, 0]]
    assert matrix.nnz == 3  # the caller's matrix is as it was


def test_empty_rows_and_an_empty_matrix_give_batches() -> None:
    batches = list(Rows.from_csr(csr_array((5, 3))).batches(2, shuffle=True))
    assert [batch.size for batch in batches] == [2, 2, 1]
    assert all(not len(batch.item) and batch.dense().sum() == 0 for batch in batches)


def test_items_are_stored_in_four_bytes_and_batched_in_eight(matrix: csr_array) -> None:
    rows = Rows.from_csr(vstack([matrix] * 2, format="csr"))
    assert rows.item.dtype == torch.int32
    assert rows.batch([0]).item.dtype == rows.batch([0]).user.dtype == torch.int64


def test_wrong_input_is_named_in_the_error(matrix: csr_array) -> None:
    with pytest.raises(DropoutError, match="want a scipy sparse matrix"):
        Rows.from_csr([[1, 2]])
    with pytest.raises(DropoutError, match="at least 1 user a batch, got 0"):
        Rows.from_csr(matrix).batches(0, shuffle=False)
