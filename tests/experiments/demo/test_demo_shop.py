"""The demo's shop: contestants measured on the same new customers, sentences and cards that follow from the numbers."""

import json
import re
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from experiments.demo import chapter_shop as page
from experiments.demo import shop as demo_shop
from experiments.demo.record import LEARNED, ORACLE, SHOP_CONTESTANTS
from experiments.demo.shop import ShopSettings
from lbdrop.recommend import Recommender
from lbdrop.recommend.data.shop import generate_shop

pytestmark = pytest.mark.process


SMALL = ShopSettings(users=300, items=60, held_out=50, epochs=1)


class Opened(NamedTuple):
    """A shop's result, and what its run told and left."""

    result: dict[str, Any]
    told: list[str]
    undisturbed: bool


@pytest.fixture(scope="module")
def opened() -> Opened:
    state, threads, told = torch.get_rng_state(), torch.get_num_threads(), []
    found = json.dumps(demo_shop.run(SMALL, told.append))
    undisturbed = torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads
    return Opened(json.loads(found, parse_constant=lambda name: pytest.fail(f"{name} in JSON")), told, undisturbed)


@pytest.fixture
def result(opened: Opened) -> dict[str, Any]:
    return opened.result


def test_contestants_and_oracle_are_measured_on_the_same_customers(result: dict[str, Any]) -> None:
    entries = {entry["name"]: entry for entry in result["contestants"]}
    assert list(entries) == [*SHOP_CONTESTANTS, ORACLE]
    assert result["data"]["test"] <= SMALL.held_out
    assert result["data"]["users"] + SMALL.held_out == SMALL.users
    best = entries[ORACLE]["test"]["ndcg@100"]["mean"]
    assert all(entry["test"]["ndcg@100"]["mean"] <= best for entry in entries.values())
    assert entries["EASE"]["test"]["ndcg@100"]["mean"] > entries["popularity"]["test"]["ndcg@100"]["mean"]


def test_run_reports_each_contestant_and_leaves_randomness_and_threads_alone(opened: Opened) -> None:
    assert opened.told == list(SHOP_CONTESTANTS)
    assert opened.undisturbed


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.01, 0.03, "better in this run"), (-0.03, -0.01, "worse in this run"), (-0.01, 0.03, "no clear difference")],
)
def test_finding_follows_from_its_interval(low: float, high: float, verdict: str, result: dict[str, Any]) -> None:
    compared = {"rival": "EASE", "measure": "ndcg@100", "difference": (low + high) / 2, "interval": [low, high]}
    sentences = demo_shop.findings(result | {"comparisons": [compared]})
    assert sentences[1].startswith("Against EASE")
    assert sentences[1].endswith(f": {verdict}.")


def test_intervals_are_paired_over_customers(result: dict[str, Any]) -> None:
    ndcg = {entry["name"]: entry["test"]["ndcg@100"]["mean"] for entry in result["contestants"]}
    assert [each["rival"] for each in result["comparisons"]] == [name for name in SHOP_CONTESTANTS if name != LEARNED]
    for each in result["comparisons"]:
        assert each["difference"] == pytest.approx(ndcg[LEARNED] - ndcg[each["rival"]], abs=1e-6)
        assert each["interval"][0] < each["difference"] < each["interval"][1]


def test_example_customers_have_one_to_three_tastes_and_get_nothing_they_have(
    result: dict[str, Any],
) -> None:
    assert [len(each["tastes"]) for each in result["examples"]] == [1, 2, 3]
    for each in result["examples"]:
        assert sum(taste["share"] for taste in each["tastes"]) == pytest.approx(1, abs=0.01)
        had = {item["title"] for item in each["history"]}
        assert not had & {item["title"] for item in each["recommended"]}
        assert {item["title"] for item in each["explained"]} <= had
        assert sum(item["found"] for item in each["recommended"]) <= each["hidden"]


def test_rates_are_those_of_the_learned_model_item_by_item(result: dict[str, Any]) -> None:
    settings = SMALL
    shop = generate_shop(settings.users, settings.items, settings.seed)
    order = np.random.default_rng(settings.seed).permutation(settings.users)
    known = shop.interactions.filter(shop.interactions["user_id"].is_in(order[settings.held_out :].tolist()))
    model = Recommender(method="sivae-lbd", epochs=settings.epochs, progress=False).fit(known)
    assert [each["rate"] for each in result["rates"]] == pytest.approx(model.rates()["rate"].to_list(), abs=1e-4)
    assert [each["likes"] for each in result["rates"]] == model.rates()["likes"].to_list()


def test_figure_has_a_dot_for_each_item_and_cards_escape_their_titles(result: dict[str, Any]) -> None:
    assert page.rates_by_likes(result).count("<circle") == SMALL.items
    customer = result["examples"][0]
    harmful = customer | {"recommended": [customer["recommended"][0] | {"title": "<b>tea</b>", "found": True}]}
    cards = page.customers(result | {"examples": [harmful]})
    assert "&lt;b&gt;tea" in cards
    assert "<b>" not in cards
    assert "✓" in cards


def test_best_contestant_is_bold_and_the_oracle_never(result: dict[str, Any]) -> None:
    table = page.scores(result)
    rows = re.findall(r"<tr.*?</tr>", table)[1:]
    bold = [re.search(r"</i>(.*?)</th>", row).group(1) for row in rows if "class=best" in row]  # type: ignore[union-attr]
    assert bold
    assert "oracle" not in bold
    assert "oracle" in rows[-1]


def test_round_counts_are_ones_twos_and_fives() -> None:
    assert page._round_counts(3, 240) == [5, 10, 20, 50, 100, 200]
