"""Fitting a product of experts: what validation users decide, and what happens without time or gain."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lbdrop.recommend.data.interactions import Interactions
from lbdrop.recommend.data.shop import generate_shop
from lbdrop.recommend.data.splits import Split, split_users
from lbdrop.recommend.linear.closed_form import EDLAE
from lbdrop.recommend.method_args import EXPERT_SETTINGS
from lbdrop.recommend.model.product import Product
from lbdrop.recommend.train import experts
from lbdrop.recommend.train.evaluate import evaluate
from lbdrop.recommend.train.experts import combine, fit_experts
from lbdrop.recommend.train.weights import Chosen

SMALL = replace(EXPERT_SETTINGS, hidden=16, latent=8, batch=25, epochs=6)
FIT = {"seed": 0, "progress": False}


@pytest.fixture(scope="module")
def split() -> Split:
    return split_users(Interactions.from_frame(generate_shop(users=400, items=40, groups=4).interactions), 80)


@pytest.fixture(scope="module")
def fitted(split: Split) -> experts.Fitted:
    return fit_experts(split.train.rows, split.validation, EDLAE(device="cpu"), SMALL, choose=False, **FIT)


def test_validation_users_are_released_to_the_linear_model(split: Split, fitted: experts.Fitted) -> None:
    assert isinstance(fitted.model, Product)
    linear = fitted.model.linear
    whole = EDLAE(device="cpu")
    whole.ridge = linear.ridge
    whole.release(whole.counted(split.train.rows), split.train.rows, split.validation)
    torch.testing.assert_close(linear.state["weights"], whole.state["weights"])


def test_weight_of_the_linear_model_is_the_best_of_the_grid(split: Split, fitted: experts.Fitted) -> None:
    assert isinstance(fitted.model, Product)
    product = Product(fitted.model.network, EDLAE(0.5, 20.0, device="cpu").fit(split.train.rows))
    combine(product, split.validation)
    found = []
    for t in experts.GRID:
        report = evaluate(
            lambda batch, t=t: product.network.plain_scores(batch) + float(t) * product.linear.scores(batch),
            split.validation, device="cpu",
        )  # fmt: skip
        found.append(report.mean["ndcg@100"])
    chosen = int(np.abs(experts.GRID - float(product.weights[0])).argmin())
    assert found[chosen] >= max(found) - 0.005


def test_temperature_has_the_best_likelihood(split: Split, fitted: experts.Fitted) -> None:
    assert isinstance(fitted.model, Product)
    product = Product(fitted.model.network, EDLAE(0.5, 20.0, device="cpu").fit(split.train.rows))
    combine(product, split.validation)
    hidden = torch.from_numpy(split.validation.held_out.toarray()) > 0

    def loss(change: float, slope: float = 0.0) -> float:
        from lbdrop.recommend.data.rows import Rows

        batch = Rows.from_csr(split.validation.fold_in).batch(range(80))
        scores = product.combined(product.experts(batch), batch, product.weights[1:] + torch.tensor([change, slope]))
        return -float(scores[hidden].mean())

    assert loss(0.0) <= min(loss(0.1), loss(-0.1), loss(0.0, 0.05), loss(0.0, -0.05)) + 1e-5


@pytest.mark.parametrize(("choose", "kept"), [(True, EDLAE), (False, Product)])
def test_linear_model_alone_is_kept_where_the_network_does_not_help_unless_asked_for(
    split: Split, monkeypatch: pytest.MonkeyPatch, choose: bool, kept: type
) -> None:
    monkeypatch.setattr(experts, "combine", lambda product, held_out: Chosen(3, -0.002, 0.004))
    short = replace(SMALL, epochs=1)
    found = fit_experts(split.train.rows, split.validation, EDLAE(device="cpu"), short, choose=choose, **FIT)
    assert isinstance(found.model, kept)
    assert "-0.0020 ± 0.0040" in found.reason


def test_budget_without_room_for_a_network_leaves_it_out(split: Split) -> None:
    found = fit_experts(split.train.rows, split.validation, EDLAE(device="cpu"), SMALL, choose=True, budget=1e-3, **FIT)
    assert isinstance(found.model, EDLAE)
    assert "no time" in found.reason


def test_budget_sets_the_epochs_of_the_network(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts, "_seconds_per_epoch", lambda *args: 10.0)
    long = replace(SMALL, epochs=50)
    found = fit_experts(split.train.rows, split.validation, EDLAE(device="cpu"), long, choose=False, budget=79.0, **FIT)
    assert found.settings is not None
    assert found.history is not None
    assert found.settings.epochs == len(found.history.epochs) == 7


@pytest.mark.parametrize(("epochs", "kept"), [(7.5, Product), (4.5, EDLAE)])
def test_much_data_get_fewer_epochs_or_no_network(
    split: Split, monkeypatch: pytest.MonkeyPatch, epochs: float, kept: type
) -> None:
    monkeypatch.setattr(experts, "_work_per_epoch", lambda *args: experts.MOST_WORK["cpu"] / epochs)
    monkeypatch.setattr(experts, "combine", lambda product, held_out: Chosen(3, 0.01, 0.001))
    long = replace(SMALL, epochs=50)
    found = fit_experts(split.train.rows, split.validation, EDLAE(device="cpu"), long, choose=True, **FIT)
    assert isinstance(found.model, kept)
    assert found.settings is None or found.settings.epochs == 7
    assert ("so much data" in found.reason) == (kept is EDLAE)


def test_work_of_an_epoch_is_that_of_its_products() -> None:
    network = experts.VAE(50, replace(SMALL, hidden=16, latent=8))
    assert experts._work_per_epoch(network, np.zeros((10, 50))) == 4 * 10 * (16 * 16 + 16 * 16 + 8 * 50)


def test_time_of_an_epoch_is_measured_without_training(split: Split) -> None:
    torch.manual_seed(0)
    network = experts.VAE(split.train.rows.shape[1], SMALL)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    assert experts._seconds_per_epoch(network, split.train.rows, SMALL, torch.device("cpu"), 0) > 0
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
