"""A generated shop whose customers' tastes are known: how much of them does a recommender find, and what carries it there?

Customers nobody trained on show four fifths of what they like, and the rest is to be found. Beside the contestants stands
the oracle, who knows every taste: chance leaves nothing more to find. Everything is the library's default but the lists
below, and this shop was not used while the defaults were chosen.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from experiments.demo.record import LEARNED, ORACLE, SHOP_CONTESTANTS
from experiments.threads import one_thread
from lbdrop.io.files import replacing
from lbdrop.recommend.data.interactions import Interactions
from lbdrop.recommend.data.shop import Shop, generate_shop
from lbdrop.recommend.data.splits import HeldOut, fold_in
from lbdrop.recommend.linear.methods import LINEAR
from lbdrop.recommend.recommender import Recommender
from lbdrop.recommend.train.evaluate import Report, evaluate

__all__ = ["FILES", "ShopSettings", "keep_shop", "run"]

FILES = ("likes.csv", "items.csv")

Tick = Callable[[str], None]
"""Told the name of the contestant whose turn it is."""


@dataclass(frozen=True)
class ShopSettings:
    """All that the shop's part depends on."""

    users: int = 3000
    items: int = 360
    held_out: int = 500
    seed: int = 3
    epochs: int = 100
    examples: int = 3
    shown: int = 5

    @classmethod
    def quick(cls) -> "ShopSettings":
        return cls(users=600, items=120, held_out=100, epochs=3)


@one_thread()
def run(settings: ShopSettings, tick: Tick | None = None) -> dict[str, Any]:
    """Open the shop, fit every contestant, measure it; what comes back is what is written as JSON."""
    began = time.perf_counter()
    shop = generate_shop(settings.users, settings.items, settings.seed)
    data = Interactions.from_frame(shop.interactions)
    order = np.random.default_rng(settings.seed).permutation(settings.users)
    known = data.select(order[settings.held_out :])
    test = fold_in(data.select(order[: settings.held_out]))
    reports, entries, learned = {}, [], None
    for name, contestant in SHOP_CONTESTANTS.items():
        if tick:
            tick(name)
        started = time.perf_counter()
        given = contestant.arguments  # the default is as it comes
        trained: dict[str, Any] = {"epochs": settings.epochs} if given and given.get("method") not in LINEAR else {}
        model = Recommender(**contestant.arguments, **trained, progress=False).fit(known)
        reports[name] = model.evaluate(test)
        entries.append(_entry(name, model, reports[name], time.perf_counter() - started))
        learned = model if name == LEARNED else learned
    assert learned is not None
    truth = torch.from_numpy(shop.scores(test.users, data.items)).float()
    reports[ORACLE] = evaluate(lambda batch: truth[batch.number], test)
    entries.append(_entry(ORACLE, None, reports[ORACLE], 0.0))
    result = {
        "settings": asdict(settings),
        "data": {"users": len(known.users), "items": len(data.items), "likes": known.rows.nnz, "test": test.scored},
        "contestants": entries,
        "comparisons": [_compare(reports, rival) for rival in SHOP_CONTESTANTS if rival != LEARNED],
        "rates": [
            {"rate": round(rate, 4), "likes": int(likes)} for _, rate, likes in learned.rates().rows()
        ],
        "examples": [_example(learned, shop, test, line, settings) for line in _examples(shop, test, settings.examples)],
    }  # fmt: skip
    result["findings"] = findings(result)
    result["seconds"] = round(time.perf_counter() - began, 1)
    return result


def keep_shop(settings: ShopSettings, folder: Path) -> None:
    """The shop as a user's own files would be: who likes what, and what it is called."""
    shop = generate_shop(settings.users, settings.items, settings.seed)
    for name, table in zip(FILES, (shop.interactions, shop.items.select("item_id", "title")), strict=True):
        with replacing(folder / name) as beside:
            table.write_csv(beside)


def _entry(name: str, model: Recommender | None, report: Report, seconds: float) -> dict[str, Any]:
    values = {key: {"mean": report.mean[key], "se": report.error[key]} for key in report.mean}
    history = None if model is None else model.history_
    table = None if model is None or history is None else model.rates()
    rates = None if table is None or "rate" not in table.columns else table["rate"].to_numpy()  # two experts have two
    return {
        "name": name,
        "test": values,
        "coverage": report.coverage,
        "epochs": None if history is None else {"best": history.best, "trained": len(history.epochs)},
        "rate": None
        if rates is None
        else {"low": float(np.quantile(rates, 0.05)), "high": float(np.quantile(rates, 0.95))},
        "seconds": round(seconds, 2),
    }  # fmt: skip


def _compare(reports: Mapping[str, Report], rival: str, measure: str = "ndcg@100") -> dict[str, Any]:
    """The difference user by user, with a 95 % interval over users."""
    difference = (reports[LEARNED].per_user[measure] - reports[rival].per_user[measure]).double()
    difference = difference[~difference.isnan()]
    mean = float(difference.mean())
    reach = 1.96 * float(difference.std()) / math.sqrt(len(difference))
    return {"rival": rival, "measure": measure, "difference": mean, "interval": [mean - reach, mean + reach]}


def findings(result: Mapping[str, Any]) -> list[str]:
    """What the numbers say, in sentences made from them."""
    ndcg = {entry["name"]: entry["test"]["ndcg@100"]["mean"] for entry in result["contestants"]}
    share = ndcg[LEARNED] / ndcg[ORACLE]
    sentences = [
        f"{LEARNED.capitalize()} reaches {share:.0%} of the oracle's NDCG@100 ({ndcg[LEARNED]:.3f} of {ndcg[ORACLE]:.3f})."
    ]
    for each in result["comparisons"]:
        low, high = each["interval"]
        verdict = "better in this run" if low > 0 else "worse in this run" if high < 0 else "no clear difference"
        interval = f"95 % interval over customers {low:+.3f} to {high:+.3f}"
        sentence = f"Against {each['rival']}: {each['difference']:+.3f} ({interval}): {verdict}."
        sentences.append(sentence.replace("-", "−"))
    rates = [each["rate"] for each in result["rates"]]
    low, high = np.quantile(rates, [0.05, 0.95])
    sentences.append(f"Learned drop rates went from 0.50 to between {low:.2f} and {high:.2f} for nine in ten items.")
    return sentences


# ------------------------------------------------------------------------------------------------------ example users


def _examples(shop: Shop, test: HeldOut, count: int) -> list[int]:
    """Test users with one, two, three, … tastes, the first of each kind among those with something to find."""
    tastes = dict(shop.tastes.group_by("user_id").len().rows())
    wanted = np.diff(test.held_out.indptr) > 0
    lines: list[int] = []
    for number in range(count):
        fitting = [
            line
            for line, user in enumerate(test.users)
            if wanted[line] and line not in lines and tastes[user] == number % 3 + 1
        ]
        lines += fitting[:1]
    return lines


def _example(model: Recommender, shop: Shop, test: HeldOut, line: int, settings: ShopSettings) -> dict[str, Any]:
    """One user: tastes, history, recommendations with their true rank, and what carried the first of them."""
    user = test.users[line]
    title = dict(shop.items.select("item_id", "title").rows())
    group = dict(shop.items.select("item_id", "group").rows())
    history = model.items_.gather(_row(test.fold_in, line))
    hidden = set(model.items_.gather(_row(test.held_out, line)))
    frame = pl.DataFrame({"user_id": [user] * len(history), "item_id": history})
    best = model.recommend(frame, k=settings.shown)
    carried = model.explain(frame, best["item_id"][0]).head(3)
    tastes = shop.tastes.filter(pl.col("user_id") == user).sort("share", descending=True)
    return {
        "user": int(user),
        "tastes": [{"group": name, "share": round(share, 3)} for _, name, share in tastes.rows()],
        "history": [{"title": title[item], "group": group[item]} for item in history],
        "hidden": len(hidden),
        "recommended": [
            {
                "title": title[row["item_id"]],
                "group": group[row["item_id"]],
                "probability": round(math.exp(row["score"]), 4),
                "uncertainty": round(row["uncertainty"], 3),
                "found": row["item_id"] in hidden,
            }
            for row in best.iter_rows(named=True)
        ],
        "explained": [
            {"title": title[item], "effect": round(effect, 3), "share": round(share, 3)}
            for item, effect, share in carried.rows()
        ],
    }


def _row(rows: Any, line: int) -> np.ndarray:
    return rows.indices[rows.indptr[line] : rows.indptr[line + 1]]
