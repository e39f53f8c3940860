"""The shop's part of the demo page: who finds how much, the learned rates by popularity, and three customers."""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from experiments.demo.record import ORACLE, SHOP_CONTESTANTS
from experiments.report.page import note, plus_minus
from experiments.report.records import Json
from experiments.report.svg import circle, figure, frame, line, panels, scale, text, ticks
from experiments.report.tables import Columns, html

__all__ = ["customers", "lead", "rates_by_likes", "scores"]

MEASURES = {"recall@20": "Recall@20", "recall@50": "Recall@50", "ndcg@100": "NDCG@100"}
SHOWN = 8


def lead(shop: Json) -> str:
    data, held = shop["data"], shop["settings"]["held_out"]
    return (
        f"<p>A made-up shop of {data['items']:,} things in twelve groups, where each customer cares for one to three groups."
        f" {data['users']:,} customers with {data['likes']:,} likes to learn from; {held:,} others show four fifths of"
        " their likes, and the rest is to be found. The oracle knows every taste: nobody can do better but by luck.</p>"
    )


def scores(shop: Json) -> str:
    """The table: every contestant, and the oracle, which does not compete."""
    entries = [_styled(entry) for entry in shop["contestants"]]
    competing = [entry for entry in entries if entry["name"] != ORACLE]
    best = {
        label: max(competing, key=lambda e: e["test"][key]["mean"])["name"]
        for key, label in MEASURES.items()
        if competing
    }

    def measured(key: str) -> Columns:
        return {MEASURES[key]: lambda entry: plus_minus(entry["test"][key])}

    shown: Columns = {heading: cell for key in MEASURES for heading, cell in measured(key).items()} | {
        "drop rates": lambda entry: _range(entry["rate"]),
        "epochs": lambda entry: str(entry["epochs"]["best"] or entry["epochs"]["trained"]) if entry["epochs"] else "–",
    }
    return html(shown, entries, best, aside=ORACLE) + note(
        "± is the standard error over customers. The best contestant of each column is bold, whether or not clearly best."
        " One training run each, with the settings each method has by default, stopped by customers held out from the"
        " training ones; another seed moves the NDCG@100 of an autoencoder by up to 0.01. Drop rates: of nine in ten items."
    )


def _styled(entry: Json) -> dict[str, Any]:
    name = entry["name"]
    colour = SHOP_CONTESTANTS[name].colour if name in SHOP_CONTESTANTS else "other"
    return {**entry, "key": name, "label": name, "family": colour}


def _range(rate: Json | None) -> str:
    if rate is None or rate["high"] == 0:
        return "–"
    low, high = f"{rate['low']:.2f}", f"{rate['high']:.2f}"
    return low if low == high else f"{low}–{high}"


def rates_by_likes(shop: Json) -> str:
    """A disc for every item: how many customers have it, against the chance that it is kept."""
    width, height, left, right, top, bottom = 420, 250, 44, 10, 10, 204
    points = [(max(each["likes"], 1), 1 - each["rate"]) for each in shop["rates"]]
    likes, keeps = [math.log10(count) for count, _ in points], [keep for _, keep in points]
    low, high = min(*keeps, 0.5), max(*keeps, 0.5)
    margin = 0.08 * ((high - low) or 0.01)
    x = scale(min(likes), max(likes), left + 8, width - right - 8)
    y = scale(low - margin, high + margin, bottom, top)
    box = (left, top, width - right, bottom)
    marks = frame(x, y, box, (), ticks(low - margin, high + margin), "customers who have the item")
    marks.append(line(left, y(0.5), width - right, y(0.5), "start"))
    for tick in _round_counts(10 ** min(likes), 10 ** max(likes)):
        marks.append(text(x(math.log10(tick)), bottom + 16, f"{tick:,}", css="tick"))
    marks += [
        circle(x(like), y(keep), 2.4, "speck m-lbd", f"{count:,} customers, kept with {keep:.3f}")
        for like, (count, keep) in zip(likes, points, strict=True)
    ]
    remark = note("Every item's keep rate by its popularity, on a logarithmic axis. Dashed: where all of them started.")
    return panels(figure("Keep rate against popularity", width, height, marks)) + remark


def _round_counts(low: float, high: float) -> list[int]:
    """1, 2 and 5 times powers of ten between two ends."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [n for power in powers for n in (round(step * 10**power) for step in (1, 2, 5)) if low <= n <= high]


def customers(shop: Json) -> str:
    """What a few customers had, what they are recommended, and why."""
    cards = "".join(_customer(each) for each in shop["examples"])
    remark = (
        '<p class="note">✓ marks what the customer went on to like. Probabilities are of the next like; ± is the standard'
        " deviation over masks, as a factor of the probability. Under “because of”, how much the logarithm of the first"
        " item's probability falls when that item is missing from the history.</p>"
    )
    return f'<div class="people">{cards}</div>{remark}'


def _customer(each: Json) -> str:
    tastes = ", ".join(f"{taste['group']} {taste['share']:.0%}" for taste in each["tastes"])
    history = [item["title"] for item in each["history"]]
    rest = f" and {len(history) - SHOWN} more" if len(history) > SHOWN else ""
    best = [
        (f'<span{" class=found" if item["found"] else ""}>{"✓ " if item["found"] else ""}{escape(item["title"])}</span>',
         f"{item['probability']:.1%} ± {item['uncertainty']:.0%}")
        for item in each["recommended"]
    ]  # fmt: skip
    why = [(f"<span>{escape(item['title'])}</span>", f"{item['effect']:+.2f}") for item in each["explained"]]
    return (
        f"<article><h3>Customer {each['user']}</h3><p>{escape(tastes)}</p>"
        f"<h4>Has</h4><p>{escape(', '.join(history[:SHOWN]) + rest)}</p>"
        f"<h4>Is recommended</h4>{_pairs('ol', best)}"
        f"<h4>{escape(each['recommended'][0]['title'])}, because of</h4>{_pairs('ul', why)}</article>"
    )


def _pairs(kind: str, pairs: Sequence[tuple[str, str]]) -> str:
    lines = "".join(f"<li>{what}<span>{value.replace('-', '−')}</span></li>" for what, value in pairs)
    return f"<{kind}>{lines}</{kind}>"
