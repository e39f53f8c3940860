"""Batches of fixed shape: padding has no influence. (Only the recording itself needs a GPU.)"""

from typing import Literal

import pytest
import torch
from scipy.sparse import random_array
from torch import Tensor

from lbdrop.recommend.data.rows import Batch, Rows
from lbdrop.recommend.model.networks import ItemTable, aligned_width
from lbdrop.recommend.model.row_dropout import SparseRows
from lbdrop.recommend.model.settings import method
from lbdrop.recommend.model.vae import VAE
from lbdrop.recommend.train.cuda_graphs import FixedBatch
from lbdrop.recommend.train.row_objective import RowObjective

NAMES = [
    "vae",
    "vae-drop",
    "sivae-lbd",
    "sivae-lbd-one",
    "sivae-concrete",
    "vae-vamp-drop",
    "vae-iaf-drop",
    "recvae",
    "dae",
    "cdae",
]


def rows(users: int = 24, items: int = 30, seed: int = 0, density: float = 0.2) -> Rows:
    return Rows.from_csr(random_array((users, items), density=density, rng=seed).tocsr())


def on_a_gpu(model: VAE, path: Literal["dense", "bag"] = "dense") -> None:
    """Rows written out, as they are there; or summed, as those of a large catalogue are."""
    for module in model.modules():
        if isinstance(module, ItemTable):
            module.path = path


def settled(model: VAE, entries: int, users: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise and masks that are the same for the same user and entry whatever the shape around them."""
    g = torch.Generator().manual_seed(3)
    noise = torch.randn(users, 64, generator=g)
    uniforms = torch.rand(9, entries, generator=g)

    def latent(batch: Batch, generator: object = None) -> Tensor | None:
        if not model.settings.variational:
            return None
        return torch.cat([noise[: min(batch.size, users)], torch.zeros(max(batch.size - users, 0), 64)])[
            :, : model.settings.latent
        ]

    def wide(shape: tuple[int, ...]) -> Tensor:
        found = torch.full(shape, 0.5)
        flat = found.view(-1, shape[-1])
        flat[:, : min(entries, shape[-1])] = uniforms[: len(flat), : shape[-1]]
        return found

    def uniform(self: SparseRows, shape: tuple[int, ...], *_: object) -> Tensor:
        return wide(shape)

    def drawn(blank: Tensor, **_: object) -> Tensor:
        return blank.copy_(wide(tuple(blank.shape)))

    model.latent_noise = latent  # type: ignore[method-assign]
    monkeypatch.setattr(SparseRows, "uniforms", uniform)
    monkeypatch.setattr(torch.Tensor, "uniform_", drawn)


@pytest.mark.parametrize("learn", [True, False])
@pytest.mark.parametrize("path", ["dense", "bag"])
@pytest.mark.parametrize("name", NAMES)
def test_padding_entries_change_neither_losses_nor_gradients(
    name: str, path: Literal["dense", "bag"], learn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = rows()
    fixed = FixedBatch(16, data.items, 1024, torch.device("cpu"))
    batch = data.batch(list(range(5, 21)))
    torch.manual_seed(0)
    model = VAE(
        data.items,
        method(
            name,
            hidden=8,
            latent=4,
            pseudo_inputs=6,
            flow_hidden=8,
            mask_kl=0.5 if "sivae" in name else 0.0,
            items_at_once=7 if path == "bag" else 0,
        ),
        users=data.users,
    )
    on_a_gpu(model, path)
    objective = RowObjective(model)
    settled(model, len(batch.item), batch.size, monkeypatch)

    def both(given: Batch) -> tuple[list[float], list[Tensor]]:
        model.zero_grad()
        losses = objective(given, 0.2, learn=learn)
        losses.total.backward()
        return [float(each.detach()) for each in losses], [
            p.grad.clone() for p in model.parameters() if p.grad is not None
        ]

    plain, gradients = both(batch)
    fixed.fill(rows(density=0.6).batch(list(range(16))))  # a longer one before: nothing of it may stay
    assert fixed.filled > len(batch.item)
    fixed.fill(batch)
    padded, filled = both(fixed.batch())
    assert padded == pytest.approx(plain, rel=1e-4)
    assert len(filled) == len(gradients) > 0
    for a, b in zip(filled, gradients, strict=True):
        assert torch.allclose(a, b, atol=1e-5, rtol=1e-3)


def test_batch_over_the_capacity_does_not_fit() -> None:
    data = rows()
    fixed = FixedBatch(16, data.items, 60, torch.device("cpu"))
    assert not fixed.fits(data.batch(list(range(15))))  # another number of users
    assert not fixed.fits(data.batch(list(range(16))))  # too many entries
    assert FixedBatch.for_batches_of(data, 16).fits(data.batch(list(range(16))))


@pytest.mark.parametrize("likelihood", ["multinomial", "logistic"])
def test_padding_columns_change_nothing(likelihood: str) -> None:
    data = rows(items=30)
    batch = data.batch(list(range(8)))
    model = VAE(data.items, method("vae", hidden=8, latent=4, likelihood=likelihood)).double()
    eta = torch.randn(8, 4, dtype=torch.float64)
    found = []
    for width in (None, aligned_width(data.items)):
        model.zero_grad()
        nll = model.nll(model.decoder(eta, width), batch)
        nll.sum().backward()
        found.append((nll.detach(), [p.grad.clone() for p in model.decoder.parameters() if p.grad is not None]))
    assert aligned_width(30) == aligned_width(64) == 64
    assert torch.allclose(found[0][0], found[1][0])
    assert all(torch.allclose(a, b) for a, b in zip(found[0][1], found[1][1], strict=True))
