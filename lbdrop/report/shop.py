"""The shop's part of the demo page: who finds how much, the learned rates by popularity, and three customers."""

import math
from collections.abc import Sequence
from html import escape

from lbdrop.report.figures import Json, _circle, _line, _scale, _svg, _text, ticks

__all__ = ["SHOP_STYLE", "customers", "lead", "rates_by_likes", "scores"]

MEASURES = {"recall@20": "Recall@20", "recall@50": "Recall@50", "ndcg@100": "NDCG@100"}
KINDS = {"fixed dropout 0.5": "fixed", "learned dropout": "learned"}
SHOWN = 8

SHOP_STYLE = """
.cards .oracle th, .cards .oracle td { color: var(--soft); font-style: italic; }
.customers { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 290px), 1fr)); gap: 14px; }
.customers article { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 14px 16px;
  font-size: 0.9rem; }
.customers h3 { font-size: 0.95rem; margin: 0 0 2px; }
.customers h4 { font-size: 0.8rem; font-weight: 600; color: var(--soft); margin: 12px 0 4px; }
.customers p { margin: 0; }
.customers ol, .customers ul { margin: 0; padding: 0; list-style: none; }
.customers li { display: flex; justify-content: space-between; gap: 12px; padding: 2px 0; }
.customers li > span:last-child { flex: none; color: var(--soft); font-variant-numeric: tabular-nums; }
.customers .found { color: var(--good); font-weight: 600; }
.speck { fill: currentColor; fill-opacity: 0.6; }
.scatter { max-width: 560px; }
.scatter svg { max-width: 520px; }
"""


def lead(shop: Json) -> str:
    data, held = shop["data"], shop["settings"]["held_out"]
    return (
        f"<p>A made-up shop of {data['items']:,} things in twelve groups, where each customer cares for one to three groups."
        f" {data['users']:,} customers with {data['likes']:,} likes to learn from; {held:,} others show four fifths of"
        " their likes, and the rest is to be found. The oracle knows every taste: nobody can do better but by luck.</p>"
    )


def scores(shop: Json) -> str:
    """The table: every contestant, and the oracle below a line."""
    entries = shop["contestants"]
    best = {
        key: max((e for e in entries if e["name"] != "oracle"), key=lambda e: e["test"][key]["mean"])["name"]
        for key in MEASURES
    }
    rows = []
    for entry in entries:
        cells = "".join(
            f'<td data-label="{label}"{" class=best" if best[key] == entry["name"] else ""}>'
            f"<span>{entry['test'][key]['mean']:.3f} ± {entry['test'][key]['se']:.3f}</span></td>"
            for key, label in MEASURES.items()
        )
        rate, epochs = entry["rate"], entry["epochs"]
        cells += f'<td data-label="drop rates"><span>{_range(rate)}</span></td>'
        cells += f'<td data-label="epochs"><span>{epochs["best"] or epochs["trained"] if epochs else "–"}</span></td>'
        swatch = f'<i class="swatch {KINDS.get(entry["name"], "")}"></i>'
        line = " class=oracle" if entry["name"] == "oracle" else ""
        rows.append(f"<tr{line}><th scope=row>{swatch}{escape(entry['name'])}</th>{cells}</tr>")
    heads = "".join(f"<th scope=col>{label}</th>" for label in (*MEASURES.values(), "drop rates", "epochs"))
    note = (
        '<p class="note">± is the standard error over customers. The best contestant of each column is bold, whether or not'
        " clearly best. One training run each, with the settings each method has by default, stopped by customers held out"
        " from the training ones; another seed moves the NDCG@100 of an autoencoder by up to 0.01. Drop rates: of nine in ten"
        " items.</p>"
    )
    return f'<table class="cards"><thead><tr><th></th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>{note}'


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
    x = _scale(min(likes), max(likes), left + 8, width - right - 8)
    y = _scale(low - margin, high + margin, bottom, top)
    marks = []
    for tick in ticks(low - margin, high + margin):
        marks += [
            _line(left, y(tick), width - right, y(tick), "grid"),
            _text(left - 6, y(tick) + 4, f"{tick:g}", "end", "tick"),
        ]
    marks.append(_line(left, y(0.5), width - right, y(0.5), "start"))
    for tick in _round_counts(10 ** min(likes), 10 ** max(likes)):
        marks.append(_text(x(math.log10(tick)), bottom + 16, f"{tick:,}", css="tick"))
    marks += [
        _circle(x(like), y(keep), 2.4, "speck learned", f"{count:,} customers, kept with {keep:.3f}")
        for like, (count, keep) in zip(likes, points, strict=True)
    ]
    marks.append(_text((left + width - right) / 2, height - 8, "customers who have the item", css="tick"))
    caption = (
        '<p class="note">Every item\'s keep rate by its popularity, on a logarithmic axis. Dashed: where all of them'
        " started.</p>"
    )
    return f'<div class="panels scatter">{_svg("Keep rate against popularity", width, height, marks)}</div>{caption}'


def _round_counts(low: float, high: float) -> list[int]:
    """1, 2 and 5 times powers of ten between two ends."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [n for power in powers for n in (round(step * 10**power) for step in (1, 2, 5)) if low <= n <= high]


def customers(shop: Json) -> str:
    """What a few customers had, what they are recommended, and why."""
    cards = "".join(_customer(each) for each in shop["examples"])
    note = (
        '<p class="note">✓ marks what the customer went on to like. Probabilities are of the next like; ± is the standard'
        " deviation over masks, as a factor of the probability. Under “because of”, how much the logarithm of the first"
        " item's probability falls when that item is missing from the history.</p>"
    )
    return f'<div class="customers">{cards}</div>{note}'


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
