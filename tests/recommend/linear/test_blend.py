"""EDLAE with a share of iALS: who chooses the share, what joins in the end, and what is said where nobody can choose."""

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_array, vstack

from lbdrop.recommend.data.interactions import Interactions
from lbdrop.recommend.data.rows import Rows
from lbdrop.recommend.data.shop import generate_shop
from lbdrop.recommend.data.splits import Split, split_users
from lbdrop.recommend.linear import blend
from lbdrop.recommend.linear.blend import Blend
from lbdrop.recommend.linear.closed_form import EDLAE
from lbdrop.recommend.linear.factors import IALS
from lbdrop.recommend.train.evaluate import evaluate
from lbdrop.recommend.train.weights import best_weight, ndcg_of_each, some_users

pytestmark = pytest.mark.filterwarnings("ignore:edlae. the drop rate ran to the bound")


@pytest.fixture(scope="module")
def shop() -> Split:
    return split_users(Interactions.from_frame(generate_shop(users=300, items=40, groups=4).interactions), 60)


@pytest.fixture(scope="module")
def groups() -> Split:
    """Four groups of 80 items, of which a user has six by chance: most pairs of a group are nobody's."""
    random = np.random.default_rng(0)
    group = random.integers(0, 4, 400)
    likes = np.stack([80 * g + random.choice(80, 6, replace=False) for g in group])
    rows = csr_array((np.ones(likes.size, np.float32), (np.repeat(np.arange(400), 6), likes.ravel())), shape=(400, 320))
    return split_users(Interactions(rows, pl.Series(range(400)), pl.Series(range(320))), 66)


def test_share_is_none_where_ials_does_not_help(shop: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IALS, "scores", lambda self, batch: torch.rand(batch.size, batch.items))
    model = Blend(device="cpu").fit(shop.train.rows, shop.validation)
    assert model.share == 0
    alone = EDLAE(device="cpu").fit(shop.train.rows, shop.validation)
    torch.testing.assert_close(model.state["weights"], alone.state["weights"])
    assert sorted(model.state) == ["rates", "weights"]


def test_ials_helps_where_most_pairs_are_nobodys(groups: Split) -> None:
    model = Blend(device="cpu").fit(groups.train.rows, groups.validation)
    assert model.share > 0
    alone = EDLAE(device="cpu").fit(groups.train.rows, groups.validation)
    both, pairs = (evaluate(each, groups.test, device="cpu").mean["ndcg@100"] for each in (model, alone))
    assert both > pairs + 0.01


def test_scores_are_those_of_both_and_of_everybody(groups: Split) -> None:
    model = Blend(device="cpu").fit(groups.train.rows, groups.validation)
    share, ridge = model.state["factors"].tolist()
    everybody = vstack([groups.train.rows, groups.validation.fold_in + groups.validation.held_out])
    factors = IALS(blend.FACTORS, blend.UNOBSERVED, ridge, epochs=blend.SWEEPS, device="cpu").fit(everybody)
    pairs = EDLAE(device="cpu").restore({"weights": model.state["weights"]})
    batch = Rows.from_csr(groups.test.fold_in).batch(range(30))
    torch.testing.assert_close(
        model.scores(batch), pairs.scores(batch) + share * factors.scores(batch), rtol=1e-4, atol=1e-5
    )


def test_little_time_leaves_ials_out(groups: Split) -> None:
    model = Blend(device="cpu")
    model.release(model.begin(groups.train.rows, groups.validation, 1e-3), groups.train.rows, groups.validation)
    assert model.share == 0


def test_training_users_judge_where_held_out_ones_are_few(shop: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = []
    monkeypatch.setattr(
        Blend, "_judged", lambda self, pairs, rows, held, ridges: judged.append((rows, held)) or torch.zeros(3, 6, 4)
    )
    Blend(device="cpu").begin(shop.train.rows, shop.validation)
    users = shop.train.rows.shape[0]
    assert [rows.shape[0] + held.fold_in.shape[0] for rows, held in judged[1:]] == [users] * blend.FOLDS
    assert sum(held.fold_in.shape[0] for _, held in judged[1:]) == users
    monkeypatch.setattr(blend, "MIN_JUDGES", 10)
    judged.clear()
    Blend(device="cpu").begin(shop.train.rows, shop.validation)
    assert len(judged) == 1


def test_without_held_out_users_it_says_that_edlae_is_alone(shop: Split) -> None:
    with pytest.warns(UserWarning, match="blend: want held-out users to choose the share of iALS, got none"):
        model = Blend(0.5, 10.0, device="cpu").fit(shop.train.rows)
    assert model.share == 0


def test_ridge_is_raised_as_long_as_held_out_rankings_gain(groups: Split) -> None:
    model = EDLAE(0.3, device="cpu")
    model.begin(groups.train.rows, groups.validation)
    assert model.ridge is not None
    users = some_users(groups.validation, torch.device("cpu"))

    def ndcg(factor: float) -> float:
        assert model.ridge is not None
        other = EDLAE(0.3, factor * model.ridge.regularisation, device="cpu").fit(groups.train.rows)
        return float(ndcg_of_each(lambda batch: [other.scores(batch)], users).mean())

    assert ndcg(1.0) >= ndcg(3.0)


def test_gain_is_judged_by_the_other_half() -> None:
    found = torch.zeros(9, 4)
    found[1:4] = torch.tensor([1.0, -1.0, 1.0, -1.0])
    found[6:] = torch.tensor([-2.0, 2.0, -2.0, 2.0])
    # Even users want one of the first weights, odd ones one of the last: each gets what the others want.
    assert best_weight(found, torch.zeros(4)).gain == pytest.approx(-1.5)
