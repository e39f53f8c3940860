"""Many recommender runs in one summary, a data set at a time: means, standard errors, grids, paired differences, words.

    ± of several seeds   s/√n over the seeds
    ± of one seed        s/√n over the test users, which says how well this model is measured, not how seeds differ
    difference           over the seeds two rows share; from three on with its 95 % t interval

Fixed rates form a grid for each encoder: the rate is chosen on mean validation NDCG@100, never on the test set.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.collaborative.record import DATA, GRIDS, MEASURE, MEASURES, PUBLISHED, ROWS
from experiments.collaborative.record import key as key_of
from experiments.report.page import plus_minus
from experiments.report.records import Json
from experiments.report.statistics import judged, paired, stat

__all__ = ["rows_beside", "summarise"]


def summarise(runs: Sequence[Json]) -> dict[str, Any]:
    """Everything the page shows, in one mapping."""
    names = sorted({run["dataset"] for run in runs}, key=lambda name: (-sum(r["dataset"] == name for r in runs), name))
    sets = {name: _dataset(name, [run for run in runs if run["dataset"] == name]) for name in names}
    return {
        "experiment": "collaborative",
        "kind": "summary",
        "measures": MEASURES,
        "datasets": sets,
        "findings": [sentence for name in names for sentence in _findings(name, sets[name], len(names) > 1)],
        "caveats": [sentence for name in names for sentence in _caveats(name, sets[name], runs, len(names) > 1)],
        "runs": [{n: run[n] for n in ("file", "dataset", "method", "seed", "settings", "provenance")} for run in runs],
    }


def _dataset(name: str, runs: Sequence[Json]) -> dict[str, Any]:
    order = {method: number for number, method in enumerate(ROWS)}
    groups: dict[str, list[Json]] = {}
    for run in sorted(runs, key=lambda r: (order.get(r["method"], 99), r["method"], r["rate"] or 0, r["seed"])):
        groups.setdefault(key_of(run), []).append(run)
    rows = {key: _row(key, group, name) for key, group in groups.items()}
    grids = {encoder: found for encoder in GRIDS if (found := _grid(encoder, rows))}
    differences = [
        {"method": ours, "against": grid["chosen"], "encoder": encoder, **found}
        for encoder, grid in grids.items()
        for ours in GRIDS[encoder].learned
        if ours in groups and (found := _difference(groups[ours], groups[grid["chosen"]])) is not None
    ]
    if "sivae-lbd" in groups and "vae-drop@0.5" in groups and grids.get("vae-drop", {}).get("chosen") != "vae-drop@0.5":
        found = _difference(groups["sivae-lbd"], groups["vae-drop@0.5"])
        differences += [{"method": "sivae-lbd", "against": "vae-drop@0.5", "encoder": None, **found}] if found else []
    return {
        "data": runs[0]["data"],
        "protocol": sorted({run["protocol"] for run in runs}),
        "seeds": sorted({run["seed"] for run in runs}),
        "rows": rows,
        "shown": rows_beside(rows, grids),
        "grids": grids,
        "differences": differences,
    }


def rows_beside(rows: Mapping[str, Json], grids: Mapping[str, Json]) -> list[str]:
    """All rows but grids and starts; of a grid the usual rate and the chosen one stand beside the others."""
    kept = {grid["chosen"] for grid in grids.values()} | {"vae-drop@0.5"}
    return [key for key, row in rows.items() if row["rate"] is None or key in kept]


def _row(key: str, runs: Sequence[Json], dataset: str) -> dict[str, Any]:
    first = runs[0]
    keeps = [run["rates"]["keep"] for run in runs if run["rates"]]
    bests = [run["best"] for run in runs if run["best"]]
    published = PUBLISHED.get(key)
    return {
        "key": key,
        "method": first["method"],
        "label": first["label"],
        "rate": first["rate"],
        "seeds": [run["seed"] for run in runs],
        "test": {name: _stat(runs, "test", name) for name in MEASURES},
        "validation": {name: _stat(runs, "validation", name) for name in MEASURES},
        "coverage": stat(run["test"]["coverage"] for run in runs),
        "popularity": stat(run["test"]["popularity"] for run in runs),
        "keep": stat(keeps),
        "rates": [run["rates"] for run in runs],
        "best_epoch": stat(best["epoch"] for best in bests),
        "beta": stat(best["beta"] for best in bests) if first["settings"].get("gamma") is None else None,
        "masks": sorted({run["masks"]["at_test"] for run in runs if run["masks"]}),
        "choice": first["choice"],
        "seconds_per_epoch": stat(run["seconds"].get("per_epoch") for run in runs),
        "seconds": stat(run["seconds"].get("train") for run in runs),
        "peak_bytes": stat(run.get("peak_bytes") for run in runs),
        "curve": _curve(runs, MEASURE),
        "keep_curve": _curve(runs, "keep") if first["settings"].get("dropout") in LEARNS else [],
        "examples": {"seed": first["seed"], "users": first["examples"]},
        "published": published.numbers.get(dataset) if published else None,
        "published_as": published.label if published else None,
        "in_the_paper": published is not None and published.in_the_paper,
    }


LEARNS = ("learned", "concrete", "gaussian")


def _stat(runs: Sequence[Json], part: str, name: str) -> dict[str, Any]:
    """Over seeds if there are several; of one seed, over its users."""
    found = stat(run[part]["mean"][name] for run in runs)
    assert found is not None
    one = len(runs) == 1
    return found | {
        "se": runs[0][part]["standard_error"][name] if one else found["se"],
        "over": "users" if one else "seeds",
    }


def _curve(runs: Sequence[Json], name: str) -> list[list[float]]:
    """Epoch by epoch the mean over the runs that got so far."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for entry in run["history"]:
            if entry.get(name) is not None:
                found.setdefault(entry["epoch"], []).append(entry[name])
    return [[epoch, sum(values) / len(values)] for epoch, values in sorted(found.items())]


def _grid(encoder: str, rows: Mapping[str, Json]) -> dict[str, Any] | None:
    points = [{"key": key, "rate": row["rate"]} for key, row in rows.items() if row["method"] == encoder]
    zero = GRIDS[encoder].rate_zero
    if zero in rows and not any(point["rate"] == 0 for point in points):
        points = [{"key": zero, "rate": 0.0}, *points]
    if len(points) < 2:
        return None  # one rate is no grid
    points.sort(key=lambda point: point["rate"])
    chosen = max(points, key=lambda point: rows[point["key"]]["validation"][MEASURE]["mean"])
    return {"label": GRIDS[encoder].label, "points": points, "chosen": chosen["key"], "rate": chosen["rate"]}


def _difference(ours: Sequence[Json], theirs: Sequence[Json]) -> dict[str, Any] | None:
    a, b = ({run["seed"]: run["test"]["mean"] for run in runs} for runs in (ours, theirs))
    seeds = sorted(a.keys() & b.keys())
    if not seeds:
        return None
    return {"seeds": seeds, "measures": {name: paired((a[s][name], b[s][name]) for s in seeds) for name in MEASURES}}


# --------------------------------------------------------------------------------------------------------------- words


def _findings(name: str, found: Json, several: bool) -> list[str]:
    rows, lead = found["rows"], f"{name}: " if several else ""
    ranked = sorted((rows[key] for key in found["shown"]), key=lambda row: -row["test"][MEASURE]["mean"])
    said = [f"“{row['label']}” ({plus_minus(row['test'][MEASURE], 4)})" for row in ranked]
    sentences = [f"{lead}Highest test NDCG@100: {', then '.join(said[:3])}."] if len(ranked) > 1 else []
    paper = [row for row in ranked if row["in_the_paper"]]
    if len(paper) > 1 and paper[0] is not ranked[0]:
        sentences.append(
            f"{lead}Of the paper's own rows: “{paper[0]['label']}” ({plus_minus(paper[0]['test'][MEASURE], 4)}), then"
            f" “{paper[1]['label']}” ({plus_minus(paper[1]['test'][MEASURE], 4)})."
        )
    for encoder, grid in found["grids"].items():
        chosen = rows[grid["chosen"]]
        tested = max(grid["points"], key=lambda point: rows[point["key"]]["test"][MEASURE]["mean"])
        tried = ", ".join(f"{point['rate']:g}" for point in grid["points"])
        sentences.append(
            f"{lead}Fixed rates on {grid['label']}: validation chooses {grid['rate']:g} of {tried}, test NDCG@100"
            f" {plus_minus(chosen['test'][MEASURE], 4)}; on the test users {tested['rate']:g} is best."
        )
        sentences += [_against(lead, rows, d) for d in found["differences"] if d["encoder"] == encoder]
    usual = [d for d in found["differences"] if d["method"] == "sivae-lbd" and d["against"] == "vae-drop@0.5"]
    return sentences + [_beside_paper(lead, rows, d) for d in usual if rows["sivae-lbd"]["published"]]


def _against(lead: str, rows: Mapping[str, Json], d: Json) -> str:
    row, value = rows[d["method"]], d["measures"][MEASURE]
    rate = f", mean drop rate {1 - row['keep']['mean']:.2f}" if row["keep"] else ""
    return (
        f"{lead}“{row['label']}”{rate}, minus “{rows[d['against']]['label']}”, the best of the grid on validation:"
        f" {_signed(value)} in NDCG@100 ({_verdict(value)}, {_seeds(d['seeds'])})."
    )


def _beside_paper(lead: str, rows: Mapping[str, Json], d: Json) -> str:
    ours, theirs = rows[d["method"]], rows[d["against"]]
    printed, value = ours["published"][MEASURE] - theirs["published"][MEASURE], d["measures"][MEASURE]
    return (
        f"{lead}SIVAE+LBDrop minus VAE+Drop at 0.5 in NDCG@100: {printed:+.4f} in the paper, {_signed(value)} here"
        f" ({_verdict(value)}, {_seeds(d['seeds'])})."
    )


def _signed(value: Json) -> str:
    return f"{'+' * (value['mean'] >= 0)}{plus_minus(value, 4)}"


def _verdict(value: Json) -> str:
    return judged(value).replace("level", "not told apart")


def _seeds(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} shared seed{'s' * (len(seeds) > 1)}"


def _caveats(name: str, found: Json, runs: Iterable[Json], several: bool) -> list[str]:
    """What a reader should know before comparing."""
    runs, lead, sentences = [run for run in runs if run["dataset"] == name], f"{name}: " if several else "", []
    users = sum(found["data"].get(f"{part}_users", 0) for part in ("train", "validation", "test"))
    complete = DATA[name].users if name in DATA else None
    if complete is not None and users != complete:
        sentences.append(
            f"{lead}the data have {users:,} users where the complete ones have {complete:,}: published numbers are near,"
            " not strictly comparable."
        )
    if len({str(run["data"]) for run in runs}) > 1:
        sentences.append(f"{lead}runs have different data; their numbers are not of one experiment.")
    if any("scaled from" in run["protocol"] for run in runs):
        sentences.append(f"{lead}schedules are scaled from the published ones, as told below.")
    single = [row["label"] for row in found["rows"].values() if len(row["seeds"]) == 1]
    if single:
        sentences.append(f"{lead}{len(single)} of {len(found['rows'])} rows have one seed: their ± is over test users.")
    for key, row in found["rows"].items():
        group = [run for run in runs if key_of(run) == key]
        names = {each: None for run in group for each in run["settings"]}
        for each in names:
            values = sorted({str(run["settings"].get(each)) for run in group})
            sentences += [f"{lead}settings differ within “{row['label']}”: {each} {', '.join(values)}."] * (
                len(values) > 1
            )
    epochs = sorted({run["settings"]["epochs"] * (2 if run["settings"].get("alternate") else 1) for run in runs
                     if "epochs" in run["settings"]})  # fmt: skip
    if len(epochs) > 1:
        sentences.append(f"{lead}networks were not trained equally long: {', '.join(map(str, epochs))} epochs.")
    commits = sorted({str(run["provenance"].get("commit", "unknown")) for run in runs})
    sentences += [f"{lead}runs come from {len(commits)} commits: {', '.join(commits)}."] * (len(commits) > 1)
    return [sentence[:1].upper() + sentence[1:] if not lead else sentence for sentence in sentences]
