"""Rows on the host, or in a file, give the same batches, runs and models as rows on the device."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_array, random_array

from lbdrop.recommend import VAE, Interactions, Rows, fit, method
from lbdrop.recommend.data import rows as module
from lbdrop.recommend.data.prepare_own import prepare_files
from lbdrop.recommend.data.prepared import load_prepared, load_rows
from lbdrop.recommend.data.rows import Batch, Resident

PLACES: tuple[Resident, ...] = ("device", "host")


@pytest.fixture
def matrix() -> csr_array:
    drawn = random_array((61, 17), density=0.25, rng=np.random.default_rng(0), format="csr", dtype=np.float32)
    return csr_array(drawn.toarray() * (np.arange(61) % 7 != 3)[:, None])  # some users have nothing


@pytest.fixture(params=[1, 40, 4_000_000])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(module, "WINDOW", request.param)
    return request.param


def assert_same(one: Batch, other: Batch) -> None:
    for field in fields(Batch):
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert a.equal(b) if isinstance(a, torch.Tensor) else a == b, field.name


@pytest.mark.parametrize("values", [False, True])
def test_batches_from_the_host_equal_those_from_the_device(matrix: csr_array, values: bool, window: int) -> None:
    both = [
        list(
            Rows.from_csr(matrix, values=values, resident=where).batches(
                5, shuffle=True, generator=torch.Generator().manual_seed(1)
            )
        )
        for where in PLACES
    ]
    assert len(both[0]) == len(both[1]) == 13
    for one, other in zip(*both, strict=True):
        assert_same(one, other)


def test_shares_and_selected_rows_from_the_host_equal_those_from_the_device(matrix: csr_array, window: int) -> None:
    device, host = (Rows.from_csr(matrix, resident=where) for where in PLACES)
    assert_same(device.batch([5, 0, 5, 3]), host.batch([5, 0, 5, 3]))
    assert host.batch([]).size == 0
    for rank in range(3):
        shares = [
            list(each.batches(4, shuffle=True, generator=torch.Generator().manual_seed(2), rank=rank, ranks=3))
            for each in (device, host)
        ]
        assert len(shares[0]) == device.steps(4, 3)
        for one, other in zip(*shares, strict=True):
            assert_same(one, other)


def test_next_window_is_gathered_before_the_last_batch_of_the_current_one(
    matrix: csr_array, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WINDOW", 20)
    gathered: list[int] = []
    chosen = Rows._gathered

    def noted(self: Rows, stored: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        gathered.append(len(source))
        return chosen(self, stored, source)

    monkeypatch.setattr(Rows, "_gathered", noted)
    for ahead, where in enumerate(PLACES):
        gathered.clear()
        batches = Rows.from_csr(matrix, resident=where).batches(2, shuffle=False)
        seen = 0
        for number, batch in enumerate(batches):
            seen += len(batch.item)
            used = int(np.searchsorted(np.cumsum(gathered), max(seen, 1)) + 1)
            if number == 0:
                assert len(gathered) == 1 + ahead
            assert len(gathered) <= used + 1 + ahead
        assert sum(gathered) == matrix.nnz


def test_free_memory_of_the_gpu_decides_where_items_are(matrix: csr_array, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Rows.from_csr(matrix).on_host  # a CPU's memory is the host's: nothing is copied
    assert Rows.from_csr(matrix, resident="host").on_host
    gpu = torch.device("cuda", 0)
    for free, has_room in ((10_000_000, True), (9_999_999, False)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 2**40))
        assert module._has_room(gpu, 5_000_000) == has_room
    assert module._has_room(gpu, 1000)


@pytest.mark.parametrize("name", ["vae-drop", "sivae-lbd", "recvae"])
def test_fit_from_the_host_has_the_same_bits(name: str, matrix: csr_array, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 40)
    found = []
    for where in PLACES:
        torch.manual_seed(0)
        model = VAE(17, method(name, hidden=6, latent=3, batch=16, epochs=2))
        history = fit(model, matrix, device="cpu", progress=False, seed=3, resident=where)
        found.append(([e["loss"] for e in history.epochs], model.state_dict()))
    (losses, state), (others, other) = found
    assert losses == others
    assert all(state[key].equal(other[key]) for key in state)


# -------------------------------------------------------------------------------------------------------------- a file


@pytest.fixture
def folder(matrix: csr_array, tmp_path: Path) -> Path:
    lines, columns = matrix.nonzero()
    frame = pl.DataFrame({"user_id": lines, "item_id": columns, "weight": matrix.data + 1})
    frame.write_parquet(tmp_path / "events.parquet")
    prepare_files(tmp_path / "events.parquet", tmp_path)
    return tmp_path / "own"


def test_rows_of_a_prepared_folder_are_a_map_of_the_file(folder: Path) -> None:
    rows = load_rows(folder)
    maps = Path("/proc/self/maps").read_text().splitlines()
    here = [
        line for line in maps
        if line.endswith("likes.safetensors")
        and int(line.split("-")[0], 16) <= rows.item.data_ptr() < int(line.split("-")[1].split()[0], 16)
    ]  # fmt: skip
    assert here
    whole = load_prepared(folder).interactions
    assert np.array_equal(rows.starts, whole.rows.indptr)
    assert np.array_equal(rows.item.numpy(), whole.rows.indices)
    assert rows.items == len(whole.items)


def test_fit_from_a_mapped_file_equals_fit_from_memory(folder: Path) -> None:
    found = []
    for rows in (load_rows(folder), Rows.from_csr(load_prepared(folder).interactions.rows)):
        torch.manual_seed(0)
        model = VAE(rows.items, method("sivae-lbd", hidden=6, latent=3, batch=16, epochs=2))
        fit(model, rows, device="cpu", progress=False)
        found.append(model.state_dict())
    assert all(found[0][key].equal(found[1][key]) for key in found[0])


def test_weights_are_read_from_the_folder(folder: Path, matrix: csr_array) -> None:
    data = load_prepared(folder).interactions
    assert isinstance(data, Interactions)
    kept = np.flatnonzero(np.diff(matrix.indptr))
    assert np.array_equal(data.rows.data, matrix[kept].data + 1)
