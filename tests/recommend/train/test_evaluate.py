"""Evaluation against a plain loop over users."""

import math
from functools import partial

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from lbdrop.errors import DropoutError
from lbdrop.recommend.data.rows import Batch
from lbdrop.recommend.data.splits import HeldOut
from lbdrop.recommend.linear.methods import Popularity
from lbdrop.recommend.train.evaluate import HeldOutRows, evaluate

USERS, ITEMS = 17, 30


class Table(nn.Module):
    """Scores are a table by row number."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(USERS, ITEMS, generator=torch.Generator().manual_seed(4)))

    def scores(self, batch: Batch, sign: float = 1.0) -> Tensor:
        assert not self.training
        assert not torch.is_grad_enabled()
        return sign * self.table[batch.number]


@pytest.fixture
def held_out() -> HeldOut:
    random = np.random.default_rng(2)
    seen = random.random((USERS, ITEMS)) < 0.3
    wanted = (random.random((USERS, ITEMS)) < 0.2) & ~seen
    wanted[5] = False  # a user who cannot be measured
    return HeldOut(csr_array(seen.astype(np.float32)), csr_array(wanted.astype(np.float32)), pl.Series(range(USERS)))


def slowly(table: np.ndarray, held_out: HeldOut, k: int) -> tuple[list[float], list[float], set[int]]:
    recall, ndcg, shown = [], [], set()
    for user in range(USERS):
        seen, wanted = set(held_out.fold_in[[user]].indices), set(held_out.held_out[[user]].indices)
        ranking = [item for item in sorted(range(ITEMS), key=lambda item: -table[user, item]) if item not in seen][:k]
        shown |= set(ranking)
        if not wanted:
            recall.append(math.nan)
            ndcg.append(math.nan)
            continue
        recall.append(sum(item in wanted for item in ranking) / min(k, len(wanted)))
        gain = sum(1 / math.log2(rank + 2) for rank, item in enumerate(ranking) if item in wanted)
        ndcg.append(gain / sum(1 / math.log2(rank + 2) for rank in range(min(k, len(wanted)))))
    return recall, ndcg, shown


@pytest.mark.parametrize("batch", [1, 6, 100])
def test_measures_agree_with_a_plain_loop(held_out: HeldOut, batch: int) -> None:
    model = Table()
    report = evaluate(model, held_out, recall=(3, 7), ndcg=(7,), batch=batch)
    table = model.table.detach().numpy()
    for name, expected in {
        "recall@3": slowly(table, held_out, 3)[0],
        "recall@7": slowly(table, held_out, 7)[0],
        "ndcg@7": slowly(table, held_out, 7)[1],
    }.items():
        np.testing.assert_allclose(report.per_user[name].numpy(), expected, rtol=1e-5)
        assert report.mean[name] == pytest.approx(np.nanmean(expected), rel=1e-5)
        assert report.error[name] == pytest.approx(np.nanstd(expected, ddof=1) / 4, rel=1e-5)  # 16 users measured
    assert report.users == 16
    assert report.coverage == pytest.approx(len(slowly(table, held_out, 7)[2]) / ITEMS)
    assert int(report.times.sum()) == USERS * 7


def test_scorer_may_be_a_function_and_its_model_returns_to_training_mode(held_out: HeldOut) -> None:
    model = Table().train()
    rows = HeldOutRows.on(held_out, "cpu")
    plain, turned = evaluate(model, rows), evaluate(partial(model.scores, sign=-1.0), rows)
    assert model.training
    assert plain.mean != turned.mean
    expected = slowly(-model.table.detach().numpy(), held_out, 20)[0]
    np.testing.assert_allclose(turned.per_user["recall@20"].numpy(), expected, rtol=1e-5)


def test_most_popular_items_have_the_highest_popularity(held_out: HeldOut) -> None:
    likes = np.bincount(held_out.fold_in.indices, minlength=ITEMS)
    model = Popularity("cpu").fit(held_out.fold_in)
    popular = evaluate(model, held_out, recall=(2,), ndcg=(2,), likes=torch.from_numpy(likes))
    anything = evaluate(Table(), held_out, recall=(2,), ndcg=(2,), likes=torch.from_numpy(likes))
    assert popular.popularity is not None
    assert anything.popularity is not None
    assert popular.popularity > 0.75 > anything.popularity
    assert popular.coverage < anything.coverage
    assert evaluate(model, held_out).popularity is None


def test_record_can_be_written_as_json(held_out: HeldOut) -> None:
    import json

    record = evaluate(Table(), held_out).record()
    assert json.loads(json.dumps(record)) == record
    assert set(record["mean"]) == {"recall@20", "recall@50", "ndcg@100"}


def test_standard_error_of_one_user_is_null_in_the_record(held_out: HeldOut) -> None:
    import json

    one = HeldOut(held_out.fold_in[:1], held_out.held_out[:1], held_out.users[:1])
    report = evaluate(Table(), one)
    assert report.users == 1
    assert all(math.isnan(error) for error in report.error.values())
    record = report.record()
    assert record["standard_error"] == dict.fromkeys(report.error, None)
    assert record["mean"] == report.mean
    json.dumps(record, allow_nan=False)


def test_wrong_input_is_named_in_the_error(held_out: HeldOut) -> None:
    with pytest.raises(DropoutError, match="want at least one k"):
        evaluate(Table(), held_out, recall=(), ndcg=())
    with pytest.raises(DropoutError, match=r"of one shape, got \(17, 30\) and \(3, 30\)"):
        evaluate(Table(), held_out._replace(held_out=held_out.held_out[:3]))
