"""The demo's page: contestants on handwritten digits, their rates and how sure they are, and the generated shop."""

import base64
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from experiments.demo import chapter_figures as demo_figures
from experiments.demo import chapter_shop as shop
from experiments.demo.record import read
from experiments.report import charts
from experiments.report.compose import Grid, Part
from experiments.report.page import (
    Chapter,
    Section,
    document,
    fact_list,
    findings,
    note,
    percent,
    plus_minus,
    section,
    write_files,
)
from experiments.report.pictures import picture, png
from experiments.report.records import Json
from experiments.report.svg import panels
from experiments.report.tables import Columns, html

__all__ = ["chapter", "part", "rates_in_words", "render", "write_page"]

CLASSES = 10
METRICS = {"accuracy, %": ("accuracy", max), "NLL": ("nll", min), "ECE": ("ece", min), "Brier": ("brier", min)}


def part(files: Sequence[Path], data: Path | None) -> Part:
    """The chapter of one result; of several, one after the other."""
    results = read(files)
    chapters = [chapter(result) for result in results]
    sections = [
        Section(f"{path.parent.name}: {each.title}" if len(files) > 1 else each.title, each.html)
        for path, found in zip(files, chapters, strict=True)
        for each in found.sections
    ]
    said = [sentence for result in results for sentence in result["findings"]]
    grids = []
    for result in results:
        grids += [grid(result)] + ([shop_grid(result["shop"])] if "shop" in result else [])
    return Part(Chapter(chapters[0].title, chapters[0].lead, sections), grids, said)


def grid(result: Json) -> Grid:
    """All contestants on the test digits, for the terminal."""
    seeds, test = len(result["seeds"]), result["data"]["test"]
    over = f"mean ± standard error over {seeds} seeds" if seeds > 1 else "one seed"
    lines = []
    for entry in result["contestants"]:
        values = entry["test"]
        cells = percent(values["accuracy"]), plus_minus(values["nll"]), plus_minus(values["ece"])
        # Without spaces around ± the table fits 80 columns.
        lines.append((entry["name"], *(cell.replace(" ", "") for cell in cells), rates_in_words(entry)))
    return Grid(f"{test:,} test digits, {over}", ("", "acc. %", "NLL", "ECE", "drop rates"), lines)


def shop_grid(found: Json) -> Grid:
    """All contestants on the shop's test customers, the oracle last, for the terminal."""
    lines = [
        (entry["name"], *(plus_minus(entry["test"][m]).replace(" ", "") for m in ("recall@20", "ndcg@100")))
        for entry in found["contestants"]
    ]
    title = f"{found['data']['test']:,} new customers of a generated shop, mean ± standard error"
    return Grid(title, ("", "Recall@20", "NDCG@100"), lines)


def write_page(path: Path, result: Json) -> Path:
    """Write the page of a result."""
    write_files(path.parent, {path.name: render(result).encode()})
    return path


def render(result: Json) -> str:
    """The whole page."""
    return document([chapter(result)])


def chapter(result: Json) -> Chapter:
    """All that the page says."""
    entries = [demo_figures.styled(entry) for entry in result["contestants"]]
    data, settings = result["data"], result["settings"]
    hidden = settings["hidden"]
    lead = (
        f"A 64–{hidden}–{hidden}–10 network on {data['name']}: {data['train']:,} to train on, {data['validation']:,} to"
        f" choose settings by, {data['test']:,} to test on. {_count(len(result['seeds']), 'seed')},"
        f" {_count(settings['epochs'], 'epoch')}, {_count(settings['masks'], 'mask')} per prediction."
    )
    sections = [
        section("What came out", findings(result["findings"]), _table(entries), _note_on_errors(result)),
        section("Seed by seed", panels(*(demo_figures.dots(entries, m) for m in demo_figures.METRICS)), note(
            "Rings: one trained network each. Discs: their mean, with one standard error to either side. NLL and ECE:"
            " further left is better; accuracy: further right.")),
        *_over_training(entries),
        section("Where the rates ended", panels(*(demo_figures.rates(result, at) for at in demo_figures.LAYERS)), note(
            "Bars: learned rates per unit, all seeds together. Solid lines: the learned rate per layer, one line a seed."
            " Dashed: where every learned rate started.")),
        section("Are they as sure as they are right?", panels(*map(charts.reliability, entries)), note(
            "Test digits of all seeds by confidence, in 15 bins: how sure the network was, against how often it was right."
            " A disc's area follows the number of digits. On the diagonal the two agree; above it the network is too"
            " cautious, below it too sure. Bins of fewer than ten digits are left unjoined.")),
        *_pavpu(entries),
        section("The least and the most certain test digits", _digits(result["uncertain"])),
        *(_shop(result["shop"]) if "shop" in result else ()),
        section("How it was run", _search(entries), _selection(result), _settings(result)),
    ]  # fmt: skip
    return Chapter("Dropout rates, fixed and learned", lead, sections)


def rates_in_words(entry: Json) -> str:
    """Layer by layer: the mean rate, or of rates per unit the range of nine in ten.

    >>> rates_in_words({"kind": "per unit", "rates": {"a": {"mean": 0.4, "low": 0.1, "high": 0.6}}})
    '0.10–0.60'
    """
    layers = entry["rates"].values()
    if entry["kind"] == "per unit":
        return ", ".join(f"{layer['low']:.2f}–{layer['high']:.2f}" for layer in layers)
    return ", ".join(f"{layer['mean']:.2f}" for layer in layers) or "–"


# ------------------------------------------------------------------------------------------------------------ sections


def _table(entries: Sequence[Json]) -> str:
    shown: Columns = {
        "accuracy, %": lambda entry: percent(entry["test"]["accuracy"]),
        "NLL": lambda entry: plus_minus(entry["test"]["nll"]),
        "ECE": lambda entry: plus_minus(entry["test"]["ece"]),
        "Brier": lambda entry: plus_minus(entry["test"]["brier"]),
        "drop rates": rates_in_words,
    }
    best = {
        heading: pick(entries, key=lambda entry: entry["test"][metric]["mean"])["key"]
        for heading, (metric, pick) in METRICS.items()
    }
    return html(shown, entries, best)


def _note_on_errors(result: Json) -> str:
    errors = (
        "± is the standard error over seeds: initial weights, order of examples and masks, on the same test digits."
        if len(result["seeds"]) > 1
        else "One seed: there is no standard error to show."
    )
    return note(
        f"{errors} The best mean of each column is bold, whether or not it is clearly best. NLL in nats per digit; ECE over"
        " 15 bins of equal width. Drop rates: behind the first and the second hidden layer, mean over seeds; of rates per"
        " unit, the range that nine in ten fall into."
    )


def _over_training(entries: Sequence[Json]) -> list[Section]:
    learned = [entry for entry in entries if demo_figures.LAYERS.keys() <= entry.get("rates_over_training", {}).keys()]
    if not learned:
        return []
    figures = [
        charts.curves(f"Behind the {name}", "epoch", [(e, e["rates_over_training"][at]) for e in learned])
        for at, name in demo_figures.LAYERS.items()
    ]
    remark = note("Mean drop rate of the layer, over units and seeds.")
    return [section("Rates over training", charts.legend(learned), panels(*figures), remark)]


def _pavpu(entries: Sequence[Json]) -> list[Section]:
    measured = [entry for entry in entries if entry.get("pavpu_curve")]
    if not measured:
        return []
    drawn = [
        (
            entry,
            [
                (t, 100 * p["mean"])
                for t, p in zip(entry["pavpu_curve"]["t"], entry["pavpu_curve"]["pavpu"], strict=True)
            ],
        )
        for entry in measured
    ]
    figure = panels(charts.curves("PAvPU, %", "threshold t", drawn))
    remark = note(
        "PAvPU: the share of digits that are certain and right or uncertain and wrong, where certain means an entropy of at"
        " most the validation digits' least plus t times their range. Means over seeds."
    )
    return [section("Does uncertainty point at errors?", charts.legend(measured), figure, remark)]


def _digits(uncertain: Json) -> str:
    parts = [
        f"<p>By predictive entropy under {escape(uncertain['contestant'])} (seed {uncertain['seed']}). Ten equally likely"
        f" classes would have {math.log(CLASSES):.2f} nats; the bar is the share of that.</p>"
    ]
    for name, shown in (("Least", uncertain["digits"]), ("Most", uncertain.get("certain", []))):
        if shown:
            wrong = sum(digit["predicted"] != digit["truth"] for digit in shown)
            parts.append(f"<h3>{name} certain: {wrong} of these {len(shown)} are wrong</h3>")
            parts.append(f'<div class="pictures ink">{"".join(map(_digit, shown))}</div>')
    return "".join(parts)


def _digit(digit: Json) -> str:
    right = digit["predicted"] == digit["truth"]
    source = f"data:image/png;base64,{base64.b64encode(png(digit['pixels'], 8)).decode()}"
    verdict = f"{'✓' if right else '✗'} says {digit['predicted']}, is {digit['truth']}"
    alt = f"test digit {digit['index']}, a {digit['truth']}"
    return picture(source, alt, right, verdict, digit["entropy"], CLASSES, f"{digit['probability']:.0%} sure")


def _shop(found: Json) -> list[Section]:
    return [
        section("A shop with known tastes", shop.lead(found), findings(found["findings"]), shop.scores(found)),
        section("Learned rates in the shop", shop.rates_by_likes(found)),
        section("Three customers", shop.customers(found)),
    ]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _search(entries: Sequence[Json]) -> str:
    strengths = [trial["strength"] for trial in entries[0]["search"]]

    def cell(strength: float) -> Columns:
        tried = {entry["key"]: {t["strength"]: t["validation_nll"] for t in entry["search"]} for entry in entries}
        return {
            f"λ = {strength:g}": lambda e: f"{tried[e['key']][strength]:.3f}" if strength in tried[e["key"]] else "–"
        }

    shown = {heading: show for strength in strengths for heading, show in cell(strength).items()}
    chosen: Columns = {"chosen λ": lambda entry: f"{entry['strength']:g}"}
    return (
        "<p>All contestants minimise the cross-entropy plus λ/N times the KL to a Gaussian prior on the weights that"
        " each hidden unit feeds; with fixed rates that is a weight decay. Validation NLL of seed 0 by λ:</p>"
        + html({**shown, **chosen}, entries)
    )


def _selection(result: Json) -> str:
    chosen = "; ".join(f"{what}: {how}" for what, how in result["selection"].items())
    return f"<p>How settings were chosen. {escape(chosen[:1].upper() + chosen[1:])}.</p>"


def _settings(result: Json) -> str:
    made = result["provenance"]
    return fact_list(
        {
            "commit": made["commit"],
            "date": made["date"],
            "hardware": made["hardware"],
            "versions": ", ".join(f"{name} {version}" for name, version in made["versions"].items()),
            "time": f"{result['seconds']:.0f} s",
        }
        | {name.replace("_", " "): value for name, value in result["settings"].items()}
    )
