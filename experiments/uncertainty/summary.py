"""What runs say: means over splits or seeds, and who is better by two standard errors of the paired difference."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from experiments.uncertainty.published import PUBLISHED
from lbdrop.io.records import read_json, write_json

__all__ = ["RESULTS", "beside", "collect", "digits_of", "error", "read_rivals", "read_uci", "verdict", "with_choices"]

RESULTS = Path(__file__).parent / "results"


def collect(runs: Path) -> None:
    """Copy what a folder of runs holds into the records of the repository: one of each set, and one of each task."""
    RESULTS.mkdir(exist_ok=True)
    for path in sorted(runs.glob("uci-*.json")):
        write_json(RESULTS / path.name, read_json(path))
    by_task: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(runs.glob("*.json")):
        if not path.name.startswith(("uci-", "rates-")):
            record = read_json(path)
            by_task.setdefault(record["task"], []).append(_rounded(record))
    for task, records in by_task.items():
        write_json(RESULTS / f"rivals-{file_name(task)}.json", {"task": task, "runs": records})


def file_name(task: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in task.lower()).replace("--", "-")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return {key: _rounded(each) for key, each in value.items()} if isinstance(value, dict) else value


def read_uci() -> dict[str, dict[str, Any]]:
    found = (read_json(path) for path in sorted(RESULTS.glob("uci-*.json")))
    return {each["set"]: each for each in found}


def read_rivals() -> dict[str, dict[str, dict[int, dict[str, Any]]]]:
    """By task, contestant and seed."""
    found: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
    for path in sorted(RESULTS.glob("rivals-*.json")):
        for record in read_json(path)["runs"]:
            found.setdefault(record["task"], {}).setdefault(record["contestant"], {})[record["seed"]] = record
    return found


def with_choices(contestants: Mapping[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """And of each split what validation likes best: a rate of the grid, or one of the two rules."""

    def best(names: Sequence[str]) -> list[dict[str, Any]]:
        runs = zip(*(contestants[name] for name in names), strict=True)
        return [min(each, key=lambda one: one["validation nll"]) for each in runs]

    grid = [name for name in contestants if name.startswith("fixed ")]
    return {
        **contestants,
        "mc": best(grid),
        "either": best([name for name in ("held-out", "bound") if name in contestants]),
    }


def error(values: Sequence[float]) -> float:
    """Standard error of the mean; none of a single value."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def digits_of(value: float) -> int:
    """Behind the point, as it was copied; at least two."""
    return max(2, len(f"{value:g}".partition(".")[2]))


def beside(ours: Sequence[float], published: float) -> str:
    """Whether the mean is above, below or level with a published mean: two standard errors of ours, and their rounding."""
    margin = max(2 * error(ours), 0.5 * 10 ** -digits_of(published))
    gap = mean(ours) - published
    return "level" if abs(gap) <= margin else "above" if gap > 0 else "below"


def verdict(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    """Of losses of the same seeds: better, worse or level by two standard errors of the difference; one seed says nothing."""
    gaps = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    if len(gaps) < 2:
        return "one seed"
    if abs(mean(gaps)) <= 2 * error(gaps):
        return "level"
    return "better" if mean(gaps) < 0 else "worse"


def counts(record: Mapping[str, dict[str, Any]], contestant: str, row: str) -> dict[str, dict[str, list[str]]]:
    """Beside a published row: the sets where a contestant is better, level and worse, by measure."""
    found: dict[str, dict[str, list[str]]] = {m: {"better": [], "level": [], "worse": []} for m in ("rmse", "ll")}
    for name, each in record.items():
        for measure, table in (("rmse", PUBLISHED[row].rmse), ("ll", PUBLISHED[row].ll)):
            said = beside([split[measure] for split in with_choices(each["contestants"])[contestant]], table[name])
            better = "below" if measure == "rmse" else "above"
            found[measure]["level" if said == "level" else "better" if said == better else "worse"].append(name)
    return found
