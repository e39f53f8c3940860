"""From records to verdicts: each contestant against the fixed rate that validation chooses, paired over seeds.

One seed is one grid search: no dropout and six rates are trained, validation NLL picks one, and its test NLL is what a learned
run of that seed has to match. The oracle is the fixed rate with the best mean test NLL, which nobody can choose. Where the
chosen rate was trained once more on training and validation examples together, rules that release them are compared with that
too.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.rates import figure, other_experiments
from experiments.rates.record import CONTESTANTS, GRID, MEASURED, RULES, STARTS, Contestant
from experiments.rates.run import by_earlier_rule, read
from experiments.rates.tasks import TASKS
from experiments.rates.verdicts import LEAST, LEVEL, in_words, paired, plus_minus, spread
from lbdrop.io.files import replacing
from lbdrop.io.records import write_json

__all__ = ["FILES", "FIXED", "by_seed", "chosen", "retraining", "save", "summarise", "summary"]

FILES = ("summary.json", "table.md", "rates.png")
"""What is made of the records, beside them."""
Record = Mapping[str, Any]
By = dict[str, dict[int, Record]]
FIXED = ("none", *(f"fixed-{rate:g}" for rate in GRID))
HOW = tuple(MEASURED)
_RELEASING = [name for name, rule in RULES.items() if rule.finds_start]


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """One task: the grid, what validation chooses from it, the oracle, and a verdict for every contestant."""
    by = by_seed(records)
    seeds = sorted(set.intersection(*(set(by.get(name, {})) for name in FIXED)))
    found: dict[str, Any] = {
        "seeds": seeds,
        "measures": _measures(records),
        "chosen": {},
        "retrained": {},
        "oracle": {},
        "contestants": {},
    }
    baseline = {how: chosen(by, seeds, how) for how in HOW}
    one_run = [by[name][seed] for name in FIXED if name != "none" for seed in seeds]
    for how in HOW:
        if not seeds:
            break
        picked = baseline[how]
        found["chosen"][how] = {
            "rates": [_rate(picked[seed]) for seed in seeds],
            **spread("nll", [picked[seed]["test"][how]["nll"] for seed in seeds]),
        }
        best = min(FIXED, key=lambda name: _mean(by[name][seed]["test"][how]["nll"] for seed in seeds))
        tested = [by[best][seed]["test"][how]["nll"] for seed in seeds]
        found["oracle"][how] = {"contestant": best, **spread("nll", tested)}
        again = _retrained(by, picked)
        if seeds and len(again) == len(seeds):
            found["retrained"][how] = spread("nll", [again[seed]["test"][how]["nll"] for seed in seeds])
            for name in (
                name
                for name, who in CONTESTANTS.items()
                if who.rule in _RELEASING and seeds and set(seeds) <= set(by.get(name, {}))
            ):
                found["retrained"][how][name] = paired(
                    *([runs[seed]["test"][how]["nll"] for seed in seeds] for runs in (by[name], again))
                )
    for name in [name for name, who in CONTESTANTS.items() if name in by and not who.retrained]:
        found["contestants"][name] = _contestant(by, name, seeds, baseline, one_run, found["oracle"])
    if seeds:
        grid = [[by[name][seed] for seed in seeds] for name in FIXED]
        alike = len({_on_gpu(run) for runs in grid for run in runs}) == 1
        one, whole = _mean(map(_seconds, one_run)), sum(_mean(map(_seconds, runs)) for runs in grid)
        found["cost"] = {"fixed_run_seconds": one if alike else None, "grid_runs": len(FIXED)}
        found["cost"]["grid_seconds"] = whole if alike else None
    found["starts"] = {rule: _starts(by, rule) for rule in (RULES[name].prefix for name in _RELEASING)}
    return found


def chosen(by: By, seeds: Sequence[int], how: str) -> dict[int, Record]:
    """The run that validation NLL picks from each seed's grid."""
    return {seed: min((by[name][seed] for name in FIXED), key=lambda r: r["validation"][how]["nll"]) for seed in seeds}


def retraining(records: Sequence[Record], seed: int) -> list[Contestant]:
    """What the grid search of a seed trains last, on all data; one contestant for each way of measuring, or one for both."""
    by = by_seed(records)
    if any(seed not in by.get(name, {}) for name in FIXED):
        return []
    picked = {chosen(by, [seed], how)[seed]["contestant"] for how in HOW}
    return [CONTESTANTS[f"{name}-retrained"] for name in sorted(picked)]


def by_seed(records: Sequence[Record]) -> By:
    """The runs of each contestant, by seed."""
    by: By = {}
    for record in records:
        by.setdefault(record["contestant"], {})[record["seed"]] = record
    return by


def _retrained(by: By, picked: Mapping[int, Record]) -> dict[int, Record]:
    """Of the chosen runs, those that were trained once more on all data."""
    last = {seed: by.get(f"{record['contestant']}-retrained", {}).get(seed) for seed, record in picked.items()}
    return {seed: record for seed, record in last.items() if record is not None}


def _contestant(
    by: By,
    name: str,
    seeds: Sequence[int],
    baseline: Mapping[str, Mapping[int, Record]],
    one_run: Sequence[Record],
    oracle: Any,
) -> dict[str, Any]:
    runs = by[name]
    common = [seed for seed in seeds if seed in runs]
    some = list(runs.values())
    found: dict[str, Any] = {"label": some[0]["label"], "runs": len(some)}
    for how in HOW:
        for measure in _measures(some):
            found |= spread(f"{measure} {how}", [run["test"][how][measure] for run in some])
    layers = list(some[0]["rates"])
    found["rates"] = {layer: _mean(run["rates"][layer]["mean"] for run in some) for layer in layers}
    found["earlier_rule"] = any(map(by_earlier_rule, some))
    found["seconds"] = _mean(map(_seconds, some))
    # A CPU's time beside a GPU's says nothing.
    alike = len({_on_gpu(run) for run in (*some, *one_run)}) == 1 and bool(one_run)
    found["cost_in_fixed_runs"] = found["seconds"] / _mean(map(_seconds, one_run)) if alike else None
    if common:
        found["against_grid"] = {
            how: paired(
                [runs[seed]["test"][how]["nll"] for seed in common],
                [baseline[how][seed]["test"][how]["nll"] for seed in common],
            )
            for how in HOW
        }
        best = by[oracle["deterministic"]["contestant"]]
        against = paired(*([r[seed]["test"]["deterministic"]["nll"] for seed in common] for r in (runs, best)))
        behind = against["difference"] > 2 * against.get("standard_error", float("inf"))
        # Rates near 0 are a collapse only where some fixed rate is better than no dropout.
        low = bool(layers) and max(found["rates"].values()) < LEVEL and oracle["deterministic"]["contestant"] != "none"
        found["collapsed"] = bool(low and behind and not CONTESTANTS[name].fixed)
    return found


def _starts(by: By, rule: str) -> dict[str, Any] | None:
    """Where a rule ends from each start, and how far apart, by layer and by mean rate, averaged over seeds."""
    names = [f"{rule}-layer-{start:g}" for start in STARTS]
    seeds = sorted(set.intersection(*(set(by.get(name, {})) for name in names)))
    if not seeds:
        return None
    layers = list(by[names[0]][seeds[0]]["rates"])

    def apart(values: Sequence[float]) -> float:
        return max(values) - min(values)

    per_layer = {
        layer: _mean(apart([by[n][seed]["rates"][layer]["mean"] for n in names]) for seed in seeds) for layer in layers
    }
    of_mean = _mean(
        apart([_mean(by[n][seed]["rates"][layer]["mean"] for layer in layers) for n in names]) for seed in seeds
    )
    return {"seeds": seeds, "apart_per_layer": per_layer, "apart_mean_rate": of_mean}


def _measures(records: Sequence[Record]) -> list[str]:
    return list(records[0]["test"]["deterministic"])


def _on_gpu(record: Record) -> bool:
    return not record["provenance"]["hardware"].endswith("threads")


def _seconds(record: Record) -> float:
    """Of the processor that did the work, which on a CPU others may have shared."""
    return record["seconds"]["train" if _on_gpu(record) else "cpu"]


def _rate(record: Record) -> float:
    return float(record["settings"]["start"]) if record["settings"]["scheme"] else 0.0


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return statistics.fmean(listed) if listed else 0.0


# -------------------------------------------------------------------------------------------------------------- writing


def summarise(folder: Path) -> dict[str, Any]:
    """Every task that has records."""
    found = {name: read(folder / f"{name}.json") for name in TASKS}
    return {name: summary(records) for name, records in found.items() if records}


def save(folder: Path) -> list[Path]:
    """``summary.json``, ``table.md``, the same of other experiments beside this one, and the figure of rates over training."""
    whole, others = summarise(folder), other_experiments.summarise(folder.parent.parent)
    if not whole:
        return []
    summary, table, rates = (folder / name for name in FILES)
    with replacing(table) as beside:
        beside.write_text("\n".join([*_lines(whole), *other_experiments.lines(others)]) + "\n", encoding="utf-8")
    paths = [write_json(summary, whole | others), table]
    drawn = figure.save({name: read(folder / f"{name}.json") for name in whole}, rates)
    return [*paths, drawn] if drawn else paths


def _lines(whole: Mapping[str, Any]) -> Iterable[str]:
    yield "Test NLL, mean ± standard error over seeds. Δ: against the fixed rate that validation chooses, paired over seeds;"
    yield f"better or worse where a two-sided t-test has p < {LEVEL:g}, from {LEAST} seeds on. Cost: time in fixed runs."
    for name, found in whole.items():
        other = found["measures"][1]
        yield f"\n## {name}\n"
        for how, words in zip(HOW, ("without masks", "20 masks"), strict=True):
            if how in found["chosen"]:
                grid, oracle = found["chosen"][how], found["oracle"][how]
                rates = ", ".join(f"{rate:g}" for rate in grid["rates"])
                yield (f"- Grid, {words}: {plus_minus(grid, 'nll')}, rates chosen by seed {rates}; oracle"
                       f" {oracle['contestant']} {plus_minus(oracle, 'nll')}.")  # fmt: skip
        for how, words in zip(HOW, ("without masks", "20 masks"), strict=True):
            if (again := found["retrained"].get(how)) is not None:
                against = "; ".join(
                    f"{CONTESTANTS[who].label} {test['difference']:+.4f} {test['verdict']}, p {test['p']:.3f}"
                    for who, test in again.items()
                    if who in CONTESTANTS and test["p"] is not None
                )
                yield f"- Grid, its choice retrained on all data, {words}: {plus_minus(again, 'nll')}; against it {against}."
        for rule, starts in found["starts"].items():
            if starts is not None:
                layers = ", ".join(f"{value:.2f}" for value in starts["apart_per_layer"].values())
                label = CONTESTANTS[f"{rule}-layer"].label
                yield (f"- {label[0].upper()}{label[1:]}: from starts .05, .3 and .7 rates end {layers} apart by layer,"
                       f" {starts['apart_mean_rate']:.2f} in the mean rate.")  # fmt: skip
        yield f"\n| contestant | seeds | NLL | Δ | NLL, 20 masks | Δ | {other} | rates | cost |"
        yield "|---|---|---|---|---|---|---|---|---|"
        for row in found["contestants"].values():
            rates = " ".join(f"{rate:.2f}" for rate in row["rates"].values())
            cost = f"{row['cost_in_fixed_runs']:.1f}" if row["cost_in_fixed_runs"] else "–"
            noted = {"collapsed": row.get("collapsed"), "by an earlier rule": row["earlier_rule"]}
            notes = "".join(f" ({note})" for note, holds in noted.items() if holds)
            yield (
                f"| {row['label']}{notes} | {row['runs']} |"
                f" {plus_minus(row, 'nll deterministic')} | {_against(row, 'deterministic')} | {plus_minus(row, 'nll masks')} |"
                f" {_against(row, 'masks')} | {row[f'{other} deterministic']:.4f} | {rates or '–'} | {cost} |"
            )


def _against(row: Mapping[str, Any], how: str) -> str:
    return in_words(row["against_grid"][how]) if "against_grid" in row else "–"
