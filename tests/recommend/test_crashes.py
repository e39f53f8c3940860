"""Commands resume after kills at random moments and at their writes, with the same bits."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest
import torch
from helpers.sealing import reseal

from lbdrop.errors import DropoutError
from lbdrop.recommend import Recommender
from lbdrop.recommend.data.shop import generate_shop
from lbdrop.recommend.train import checkpoints

KILLS = int(os.environ.get("LBDROP_KILLS", "8"))
"""SIGKILLs of each of the five; more in a night than in a test."""


@pytest.mark.process
def test_commands_survive_kills_bit_for_bit(tmp_path: Path) -> None:
    # In a process of its own, which forks: here polars has run and a fork would wait for its threads for ever.
    call = [
        sys.executable,
        "-m",
        "benchmarks.faults",
        "--kills",
        str(KILLS),
        "--others",
        "1",
        "--out",
        str(tmp_path / "faults.json"),
    ]
    ran = subprocess.run(call, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-1000:] + ran.stderr[-3000:]
    found = json.loads((tmp_path / "faults.json").read_text())
    for verb in ("fit", "score", "prepare", "report", "save"):
        faults, checked = found[verb]["faults"], found[verb]["checked"]
        assert faults["moment"] + faults["operation"] == KILLS
        assert sum(found[verb]["operations killed at"].values()) == faults["operation"]
        assert checked["states left by a fault"] > 0 or verb not in ("fit", "score")
        assert checked["results the same to the last bit"] > 0


@pytest.fixture(scope="module")
def likes() -> pl.DataFrame:
    return generate_shop(users=100, items=30, groups=3).interactions


def small(**changes: object) -> Recommender:
    return Recommender("vae-drop", **({"epochs": 2, "anneal_steps": 20, "validation": 0, "progress": False} | changes))  # type: ignore[arg-type]


def test_fit_resumes_only_with_the_same_data(likes: pl.DataFrame, tmp_path: Path) -> None:
    small().fit(likes, checkpoints=tmp_path / "state")
    first, second = (likes.filter(pl.col("user_id") == user) for user in (1, 2))
    swapped = likes.with_columns(user_id=pl.col("user_id").replace({1: 2, 2: 1}))  # as many users, items and entries
    assert not first["item_id"].equals(second["item_id"])
    renamed = likes.with_columns(item_id="a " + pl.col("item_id"))
    for other in (swapped, renamed):
        with pytest.raises(DropoutError, match="state holds another run: .* was .* and is now"):
            small().fit(other, checkpoints=tmp_path / "state")
    with pytest.raises(DropoutError, match="holds another run: lr was"):
        small(lr=0.01).fit(likes, checkpoints=tmp_path / "state")
    longer = small(epochs=3).fit(likes, checkpoints=tmp_path / "state")  # more epochs are the same run, further on
    assert longer.history_ is not None
    assert [epoch["epoch"] for epoch in longer.history_.epochs] == [1, 2, 3]


def test_two_fits_into_one_folder_are_one_line_each(likes: pl.DataFrame, tmp_path: Path) -> None:
    """From a thread as from a process: the lock belongs to the run."""
    expected, refused, load = small().fit(likes).state(), [], checkpoints.newest

    def while_another(folder: Path) -> Path | None:
        with ThreadPoolExecutor(1) as pool, pytest.raises(DropoutError, match="state: want .* got one locked") as error:
            pool.submit(small().fit, likes, checkpoints=folder).result()
        refused.append(str(error.value))
        return load(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "newest", while_another)
        model = small().fit(likes, checkpoints=tmp_path / "state")
    assert refused
    assert not any("\n" in each for each in refused)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state().items())
    assert os.listdir(tmp_path / "state") == ["epoch-00002"]


def test_foreign_lock_beside_states_is_kept(likes: pl.DataFrame, tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("of a door")
    with pytest.raises(DropoutError, match="got lock there, which would be lost"):
        small().fit(likes, checkpoints=tmp_path)
    assert (tmp_path / "lock").read_text() == "of a door"


def test_damaged_state_is_refused_before_a_trainer_is_set_up(
    likes: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small().fit(likes, checkpoints=tmp_path)
    (tmp_path / "epoch-00002" / "state.safetensors").write_bytes(b"half of")
    monkeypatch.setattr("lbdrop.recommend.train.fit.launch", lambda *_, **__: pytest.fail("a trainer was set up"))
    with pytest.raises(DropoutError, match="state.safetensors: want"):
        small().fit(likes, checkpoints=tmp_path)


def test_unreadable_state_is_an_error_of_one_line(likes: pl.DataFrame, tmp_path: Path) -> None:
    small().fit(likes, checkpoints=tmp_path)
    (tmp_path / "epoch-00002" / "state.safetensors").write_bytes(b"half of")
    with pytest.raises(
        DropoutError, match=r"state.safetensors: want \d+ bytes, got 7: .*; choose another folder, or delete"
    ):
        small().fit(likes, checkpoints=tmp_path)
    reseal(tmp_path)
    with pytest.raises(DropoutError, match=r"epoch-00002: cannot be read \(.*\); choose another folder, or delete"):
        small().fit(likes, checkpoints=tmp_path)
    (tmp_path / "epoch-00002" / "record.json").write_text("{")
    with pytest.raises(DropoutError, match="record.json: want JSON"):
        small().fit(likes, checkpoints=tmp_path)
