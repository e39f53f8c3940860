"""Everybody is measured on the same hidden likes, and the table says who is missing."""

import json
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_matrix

from benchmarks.recommender_contestants import CONTESTANTS, _best, _from_pairs
from benchmarks.recommender_peers import K, collected, likes, measured, run_one, split, table
from lbdrop.recommend.data.splits import HeldOut


def write(path: Path, users: int = 60, items: int = 30) -> Path:
    """Users of one of three groups of items, with stars."""
    random = np.random.default_rng(0)
    pairs = [(u, i) for u in range(users) for i in random.choice(items // 3, 8, replace=False) * 3 + u % 3]
    user, item = np.array(pairs).T
    np.savez(path, user=user, item=item, rating=np.where(random.random(len(user)) < 0.9, 5, 1))
    return path


def test_hidden_likes_are_fitted_by_nobody(tmp_path: Path) -> None:
    data = likes(write(tmp_path / "small.npz"))
    train, test, held = split(data, 0)
    assert train.shape == data.rows.shape
    assert train.nnz == data.rows.nnz - held.held_out.nnz < data.rows.nnz
    assert not train[test].multiply(held.held_out).nnz
    assert (train[test] + held.held_out != data.rows[test]).nnz == 0


def test_perfect_ranking_has_measures_of_one_and_an_empty_one_of_zero(tmp_path: Path) -> None:
    _, _, held = split(likes(write(tmp_path / "small.npz")), 0)
    truth = np.full((len(held.users), K), -1)
    for row, (a, b) in enumerate(zip(held.held_out.indptr[:-1], held.held_out.indptr[1:], strict=True)):
        truth[row, : b - a] = held.held_out.indices[a:b]
    scored = torch.from_numpy(np.diff(held.held_out.indptr) > 0)
    for ranked, value in ((truth, 1.0), (np.full_like(truth, -1), 0.0)):
        assert all((each[scored] == value).all() for each in measured(ranked, held).values())


def test_scores_and_pairs_become_the_same_table() -> None:
    scores, seen = np.array([[0.1, 0.9, 0.5, 0.7], [0.4, 0.3, 0.2, 0.1]]), csr_matrix([[0, 1, 0, 0], [0, 0, 0, 1]])
    assert _best(scores, seen, 4).tolist() == [[3, 2, 0, -1], [0, 1, 2, -1]]
    pairs = _from_pairs(np.array([3, 8]), np.array([3, 8, 3, 8, 3, 8]), np.array([3, 0, 2, 1, 0, 2]), 4)
    assert pairs.tolist() == [[3, 2, 0, -1], [0, 1, 2, -1]]


def test_record_of_two_contestants_becomes_a_table_with_paired_differences(tmp_path: Path) -> None:
    file = write(tmp_path / "small.npz")
    for name in ("lbdrop ease", "lbdrop popularity"):
        run_one(file, name, 0, tmp_path / f"small-{name.replace(' ', '-')}-seed0.json")
    ours = json.loads((tmp_path / "small-lbdrop-ease-seed0.json").read_text())
    (tmp_path / "small-lbdrop-default-seed0.json").write_text(json.dumps(ours))
    (tmp_path / "small-implicit-ALS-seed0.failed").write_text("failed: no such package")
    record = collected(tmp_path, ["small"], 0)
    rows = record["data"]["small"]
    assert set(rows) == set(CONTESTANTS)
    assert rows["lbdrop ease"]["ndcg@100_minus_ours"] == [0.0, 0.0]
    assert rows["lbdrop popularity"]["ndcg@100_minus_ours"][0] < 0
    shown = table(record, "small").splitlines()
    assert shown[2].startswith("| **lbdrop")
    assert "| implicit ALS | failed: no such package | | | | | |" in shown


def test_held_out_rows_of_a_split_are_those_of_its_users(tmp_path: Path) -> None:
    _, test, held = split(likes(write(tmp_path / "small.npz")), 1)
    assert isinstance(held, HeldOut)
    assert len(test) == len(held.users) == 6
