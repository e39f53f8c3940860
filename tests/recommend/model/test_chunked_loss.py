"""The loss of a large catalogue in chunks equals the plain loss; and a million items train in little memory."""

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lbdrop.recommend.data import rows as rows_module
from lbdrop.recommend.data.rows import MAX_TABLE, Batch, Rows, users_at_once
from lbdrop.recommend.model import chunked_loss, networks, vae
from lbdrop.recommend.model.chunked_loss import chunk_width, chunked_multinomial_nll
from lbdrop.recommend.model.likelihoods import multinomial_nll
from lbdrop.recommend.model.settings import method
from lbdrop.recommend.model.vae import VAE
from lbdrop.recommend.train.evaluate import HeldOutRows, evaluate
from lbdrop.recommend.train.row_objective import RowObjective


def drawn(users: int, items: int, seed: int) -> Batch:
    """Random rows; some users have nothing, and one has everything."""
    table = random_array((users, items), density=0.3, rng=seed).toarray()
    table[:: max(users // 2, 1)] = 0
    table[-1] = 1
    return Rows.from_csr(csr_array(table)).batch(range(users))


def slopes(nll: Tensor, weights: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad((nll * weights).sum(), inputs)


@given(
    users=st.integers(1, 6), items=st.integers(1, 23), width=st.integers(1, 4), chunk=st.integers(1, 24),
    scale=st.sampled_from([0.1, 1.0, 300.0]), seed=st.integers(0, 2**16),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_chunked_loss_has_the_value_and_gradients_of_the_plain_loss(
    users: int, items: int, width: int, chunk: int, scale: float, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(users, width, generator=g, dtype=torch.float64) * scale**0.5
    weight = torch.randn(items, width, generator=g, dtype=torch.float64) * scale**0.5
    bias = torch.randn(items, generator=g, dtype=torch.float64)
    inputs = hidden.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()
    batch, weights = drawn(users, items, seed), torch.randn(users, generator=g, dtype=torch.float64)
    plain = multinomial_nll(torch.nn.functional.linear(*inputs), batch)
    found = chunked_multinomial_nll(*inputs, batch, chunk)
    torch.testing.assert_close(found, plain, rtol=1e-12, atol=1e-11 * scale)
    for one, other in zip(slopes(found, weights, *inputs), slopes(plain, weights, *inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11 * scale)


def test_gradient_agrees_with_finite_differences() -> None:
    batch = drawn(4, 9, 0)
    inputs = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 3), (9, 3), (9,))]
    assert torch.autograd.gradcheck(lambda h, w, b: chunked_multinomial_nll(h, w, b, batch, 4), inputs)


def test_loss_stays_finite_for_logits_whose_exponential_overflows() -> None:
    batch = drawn(3, 8, 1)
    hidden, weight = torch.full((3, 1), 100.0, requires_grad=True), torch.linspace(-90, 90, 8)[:, None].requires_grad_()
    bias = torch.zeros(8, requires_grad=True)
    nll = chunked_multinomial_nll(hidden, weight, bias, batch, 3)
    torch.testing.assert_close(nll, multinomial_nll(hidden @ weight.T, batch))
    nll.sum().backward()
    assert all(bool(torch.isfinite(each.grad).all()) for each in (hidden, weight, bias) if each.grad is not None)


def test_inputs_without_requires_grad_get_no_gradient() -> None:
    batch = drawn(3, 8, 1)
    hidden, weight, bias = torch.randn(3, 2, requires_grad=True), torch.randn(8, 2), torch.randn(8)
    chunked_multinomial_nll(hidden, weight, bias, batch, 3).sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None


def test_half_precision_loss_sums_in_single_precision() -> None:
    batch = drawn(5, 40, 2)
    hidden, weight = torch.randn(5, 8, requires_grad=True), torch.randn(40, 8, requires_grad=True)
    bias = torch.randn(40, requires_grad=True)
    found, plain = [], []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found.append(chunked_multinomial_nll(hidden, weight, bias, batch, 16))
        plain.append(multinomial_nll(torch.nn.functional.linear(hidden, weight, bias), batch))
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-4)
    for one, other in zip(
        *(torch.autograd.grad(nll[0].sum(), (hidden, weight, bias)) for nll in (found, plain)), strict=True
    ):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.02 * other.norm()


def test_half_precision_loss_of_many_chunks_is_as_exact_as_of_one() -> None:
    batch, g = drawn(20, 2000, 0), torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 8, generator=g).bfloat16().requires_grad_() for n in (20, 2000))
    bias = torch.zeros(2000, dtype=torch.bfloat16, requires_grad=True)

    def slope(nll: Tensor) -> Tensor:
        return torch.autograd.grad(nll.sum(), hidden)[0].double()

    exact = slope(multinomial_nll(torch.nn.functional.linear(hidden.double(), weight.double()), batch))
    plain = slope(multinomial_nll(torch.nn.functional.linear(hidden, weight, bias), batch))
    found = slope(chunked_multinomial_nll(hidden, weight, bias, batch, 4))
    assert (found - exact).norm() < 1.5 * (plain - exact).norm()


@pytest.mark.parametrize("name", ["dae", "vae", "vae-drop", "sivae-lbd", "sivae-lbd-dense", "sivae-concrete", "recvae"])
@pytest.mark.parametrize("at_once", [1, 7, 29])
def test_model_in_chunks_has_the_same_losses_and_gradients_under_any_masks(name: str, at_once: int) -> None:
    batch = drawn(12, 30, 3)
    found = []
    for items_at_once in (0, at_once):
        torch.manual_seed(0)
        estimator = "double-cv-3" if name.startswith("sivae-lbd") else None
        chosen = method(name, hidden=8, latent=4, items_at_once=items_at_once, estimator=estimator)
        model = VAE(30, chosen).double()
        losses = RowObjective(model)(batch, 0.2, torch.Generator().manual_seed(5))
        losses.total.backward()
        found.append((torch.stack([*losses]), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}))
    (plain, gradients), (chunks, others) = found
    torch.testing.assert_close(chunks, plain, rtol=1e-12, atol=1e-12)
    assert gradients.keys() == others.keys()
    for key, gradient in gradients.items():
        torch.testing.assert_close(others[key], gradient, rtol=1e-9, atol=1e-12)


def test_large_catalogues_are_split_into_chunks_by_default() -> None:
    assert chunk_width(100_000, 500) == 100_000
    assert chunk_width(100_001, 500) == 2**23 // 500
    assert chunk_width(1_000_000, 100_000) == 1024
    assert chunk_width(50, 500, at_once=20) == 20
    assert chunk_width(50, 500, at_once=200) == 50


def test_large_catalogue_trains_without_a_dense_table(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = drawn(6, 30, 0)

    def widest(limit: int) -> int:
        """The most numbers that any tensor of a step on a GPU's path has."""
        for module in (networks, chunked_loss):
            monkeypatch.setattr(module, "LARGE_CATALOGUE", limit)
        monkeypatch.setattr(chunked_loss, "MIN_ITEMS", 4)
        monkeypatch.setattr(chunked_loss, "MAX_TABLE", 24)
        model = VAE(30, method("vae-drop", hidden=2, latent=2))
        with Sizes() as sizes:
            RowObjective(model)(batch, 0.2).total.backward()
        return sizes.widest

    assert widest(100) >= 6 * 30
    assert widest(29) < 6 * 30


class Sizes(TorchDispatchMode):
    """Notes how many numbers the largest result of any operation has."""

    widest = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else [result]:
            if isinstance(each, Tensor):
                self.widest = max(self.widest, each.numel())
        return result


def test_summed_item_vectors_equal_the_product_of_dense_rows() -> None:
    table, batch = networks.ItemTable(30, 3), drawn(6, 30, 0)
    values = torch.rand(2, len(batch.item))
    for path in ("bag", "dense"):
        table.path = path
        torch.testing.assert_close(
            table(values, batch), (batch.dense(values) @ table.weight + table.bias).flatten(0, 1)
        )


MILLION = """
import json, lightning.fabric, torch
import benchmarks.big_data as big
torch.set_num_threads(1)
before = big.peak_bytes()
model, rows = big.train(catalogue=1_000_000, hidden=8, batch=100, steps=1)
trained = big.peak_bytes()
big.score(model, rows[:40], samples=2)
print(json.dumps([before, trained, big.peak_bytes()]))
"""


@pytest.mark.process
def test_million_items_train_and_score_without_a_dense_table() -> None:
    done = subprocess.run([sys.executable, "-c", MILLION], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    before, trained, scored = json.loads(done.stdout.splitlines()[-1])
    parameters = 4 * 1_000_000 * (8 + 8 + 2)  # both tables, bias and rates
    dense = 4 * 1_000_000 * 100
    # Parameters, gradients and Adam's two; the plain loss adds three dense tables, and the chunks much less than one.
    assert 3 * parameters < trained - before < 4 * parameters + dense
    assert scored - before < 4 * parameters + 10 * 4 * MAX_TABLE  # and not a row for each of the forty


def test_validation_of_a_large_catalogue_scores_only_as_many_users_as_fit_into_a_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert users_at_once(1_000_000, 500) == 16
    assert users_at_once(20_000, 500) == 500
    monkeypatch.setattr(rows_module, "MAX_TABLE", 30 * 4)
    rows, sizes = Rows.from_csr(csr_array(np.eye(10, 30))), []

    def scores(batch: Batch) -> Tensor:
        sizes.append(batch.size)
        return batch.dense()

    evaluate(scores, HeldOutRows(rows, rows), recall=(1,), ndcg=(1,))
    assert sizes == [4, 4, 2]


def test_small_catalogues_use_the_plain_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> Tensor:
        raise AssertionError("chunks where none are needed")

    monkeypatch.setattr(vae, "chunked_multinomial_nll", refuse)
    VAE(30, method("vae", hidden=2, latent=2)).losses(drawn(6, 30, 0), 0.2).total.sum().backward()
    with pytest.raises(AssertionError):
        VAE(30, method("vae", hidden=2, latent=2, items_at_once=29)).losses(drawn(6, 30, 0), 0.2)
