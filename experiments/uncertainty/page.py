"""The page that answers whether to use this, or something else: made from the records, every number and every verdict.

Run: ``python -m experiments.uncertainty page``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.uncertainty.contestants import CONTESTANTS
from experiments.uncertainty.published import PUBLISHED
from experiments.uncertainty.summary import (
    collect,
    counts,
    digits_of,
    error,
    read_rivals,
    read_uci,
    verdict,
    with_choices,
)

__all__ = ["FIGURE", "OURS", "PAGE", "collect", "page", "write"]

ROOT = Path(__file__).parent.parent.parent
PAGE, FIGURE = ROOT / "docs" / "uncertainty.md", ROOT / "docs" / "images" / "uncertainty.png"
OURS = (
    "held-out",
    "held-out-everywhere",
    "bound",
    "bound-everywhere",
    "held-out-unit",
    "held-out-model",
    "depth-learned",
)
DEFAULT = "held-out"
"""Ours that the advice is about: what the library does with held-out data and a network as it is."""
SEVERAL = ("ensemble", "ensemble-learned")
UCI_OURS = {"held-out": "**held-out rule**", "bound": "**the bound**", "either": "**either, by validation**"}
UCI_RUN = {"mc": "MC dropout, run here", "no dropout": "no dropout", "ensemble of 5": "ensemble of 5, run here",
           "ensemble of 5, held-out": "**ensemble of 5, held-out rule**"}  # fmt: skip
SHORT = {"rmse": "RMSE", "ll": "log likelihood"}
Rivals = Mapping[str, Mapping[str, Mapping[int, dict[str, Any]]]]

ABOUT = """# What the uncertainty is worth

Should you use learned dropout for uncertainty, or an ensemble, SWAG, Laplace, IVON? Everything here is run by one command
([how](../experiments/uncertainty/README.md)), but for the published rows of the last tables.
"""


def page(uci: Mapping[str, dict[str, Any]], rivals: Rivals) -> str:
    """The page for these records."""
    parts = [ABOUT, advice(rivals), "![Loss against the cost of training](images/uncertainty.png)\n",
             rivals_part(rivals), learned_part(rivals), uci_part(uci), origin(uci, rivals)]  # fmt: skip
    return "\n".join(part for part in parts if part)


def write() -> None:
    """The page and its figure, from the records of the repository."""
    uci, rivals = read_uci(), read_rivals()
    draw_figure(rivals, FIGURE)
    PAGE.write_text(page(uci, rivals), encoding="utf-8")


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in lines)


def number(value: float, digits: int = 3) -> str:
    """Without the 0 before the point, as in the other tables."""
    text = f"{value:.{digits}f}"
    return text.replace("-", "−").replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text.replace("-", "−")


def as_published(value: float) -> str:
    """With the digits that it was copied with, at least two."""
    return number(value, digits_of(value))


# ---------------------------------------------------------------------------------------------------- classification


def losses(runs: Mapping[int, dict[str, Any]], which: str) -> dict[int, float]:
    return {seed: record[which]["nll"] for seed, record in runs.items()}


def standing(each: Mapping[str, Mapping[int, dict[str, Any]]], name: str, which: str) -> tuple[str, str]:
    """Of a task: the best other single network, and whether a contestant is better, level or worse."""
    others = [other for other in each if other not in (*SEVERAL, *OURS)]
    best = min(others, key=lambda other: mean(losses(each[other], which).values()))
    return best, verdict(losses(each[name], which), losses(each[best], which))


def wins(rivals: Rivals, name: str, which: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"better": [], "level": [], "worse": [], "one seed": []}
    for task, each in rivals.items():
        if name in each:
            found[standing(each, name, which)[1]].append(task)
    return found


def gap(each: Mapping[str, Mapping[int, dict[str, Any]]], name: str, other: str, which: str) -> float:
    """The loss of a contestant beside another's, in per cent of that."""
    own, theirs = (mean(losses(each[one], which).values()) for one in (name, other))
    return 100 * (own / theirs - 1)


def advice(rivals: Rivals) -> str:
    """Three sentences, whose numbers are those of the tables, and whose direction follows from them."""
    tasks = {task: each for task, each in rivals.items() if {DEFAULT, "mc-best", "ensemble"} <= each.keys()}
    if not tasks:
        return ""
    beside = [gap(each, DEFAULT, standing(each, DEFAULT, "test")[0], "test") for each in tasks.values()]
    grid = [gap(each, DEFAULT, "mc-best", "test") for each in tasks.values()]
    four = [gap(each, "ensemble", DEFAULT, "test") for each in tasks.values()]
    cost = [mean(mean(run["training"] for run in each[name].values()) for each in tasks.values())
            for name in (DEFAULT, "mc-best", "ensemble")]  # fmt: skip
    nll = lambda each, which: mean(losses(each["deterministic"], which).values())  # noqa: E731
    scaled = {task: 100 * (nll(each, "calibrated") / nll(each, "test") - 1) for task, each in tasks.items()}
    harmed = {task: value for task, value in scaled.items() if value > 0}
    helped = [value for value in scaled.values() if value <= 0]
    first = (
        f"**One network:** the NLL of learned rates (the {label_of(DEFAULT)}) is {percent(mean(grid))} beside that of"
        f" MC dropout at the best of five rates. It takes {cost[0]:.1f} plain runs of training instead of {cost[1]:.1f}. Beside"
        f" the best other single network of each task it is {percent(mean(beside))}, {percent(max(beside))} at worst. "
        + (
            "Take learned rates instead of a grid"
            if mean(grid) < 1
            else "A grid of rates is better where it can be paid"
        )
        + (", and do not expect them to beat a rival tuned to the task." if mean(beside) > 0 else ".")
    )
    second = (
        f"**Several networks:** an ensemble of four has {percent(mean(four))} beside learned rates, and is ahead on"
        f" {sum(value < 0 for value in four)} of {len(four)} tasks. It takes {cost[2]:.1f} plain runs and four times"
        f" the memory. {'Take it where that can be paid.' if mean(four) < 0 else 'It does not pay here.'}"
    )
    third = (
        "**No new training:** scaling the temperature changes the NLL of a network without dropout by"
        f" {percent(mean(helped) if helped else 0.0)} where it helps. Do it first"
        + (
            f", with many validation examples: it adds {percent(mean(harmed.values()))} on {'; '.join(harmed)}"
            if harmed
            else ""
        )
        + "."
    )
    several = sum(len(each[DEFAULT]) > 1 for each in tasks.values())
    said = f"These are {len(tasks)} of {len(rivals)} tasks, the rest being in part; {several} have more than one seed."
    return f"{first}\n\n{second}\n\n{third}\n\n{said}\n"


def label_of(name: str) -> str:
    return CONTESTANTS[name][1].strip("*")


def percent(value: float) -> str:
    return f"{round(value, 1) + 0.0:+.1f} %".replace("-", "−")


def rivals_part(rivals: Rivals) -> str:
    if not rivals:
        return ""
    intro = (
        "## Classification\n\nEvery contestant trains on the same examples, from the same weights where it has one"
        " network."
        " Validation examples choose rates, steps and priors, and are never trained on. Measures are of 20 samples;"
        " calibrated is"
        " after temperature scaling on the validation examples. Near strangers are two classes left out, far ones"
        " another data"
        " set. Everywhere is dropout behind every layer, elsewhere it is in the usual places. Shift is the mean over"
        " noise, blur"
        " and JPEG, or replaced characters, in three degrees. Training is in times of a plain run, with all that a"
        " method chooses from. Passes are those of one prediction, copies those of the weights. Bold: this library.\n"
    )
    rows = []
    for name in OURS[:4]:
        cells = [label_of(name)]
        for which in ("test", "calibrated"):
            found = wins(rivals, name, which)
            gaps = [gap(each, name, standing(each, name, which)[0], which) for each in rivals.values() if name in each]
            cells.append(" / ".join(str(len(found[key])) for key in ("better", "level", "worse")))
            cells += [percent(mean(gaps)), percent(max(gaps))]
        rows.append(cells)
    verdicts = (
        "Each of ours beside the best other single network of each task, which the test itself chooses: tasks where"
        " it is"
        " better, level, worse, and how much higher its loss is. Level is within two standard errors of the paired"
        " difference over the seeds; few seeds make much level, and tasks with one seed are not counted there.\n\n"
        + table(("of this library", "NLL", "mean", "worst", "calibrated NLL", "mean", "worst"), rows)
    )
    return "\n".join([intro, verdicts, *(task_part(task, each) for task, each in rivals.items())])


def task_part(task: str, each: Mapping[str, Mapping[int, dict[str, Any]]]) -> str:
    header = ("", "NLL", "calibrated", "accuracy", "ECE", "adaptive ECE", "Brier", "AUROC of errors", "AURC", "near", "far",
              "NLL under shift", "training", "passes", "copies")  # fmt: skip
    rows = []
    for name, (_, label) in CONTESTANTS.items():
        if name not in each:
            continue
        runs = list(each[name].values())
        test: Callable[[str], float] = lambda key: mean(run["test"][key] for run in runs)  # noqa: B023, E731
        shift = mean(shifted["nll"] for run in runs for shifted in run["shift"].values())
        nll = number(test("nll"))
        spread = f" ± {number(error([run['test']['nll'] for run in runs]))}" if len(runs) > 1 else ""
        rows.append((
            label, nll + spread, number(mean(run["calibrated"]["nll"] for run in runs)), number(test("accuracy")),
            *(number(test(key)) for key in ("ece", "adaptive ece", "brier", "error auroc")), number(test("aurc"), 4),
            number(mean(run["near"] for run in runs)), number(mean(run["far"] for run in runs)), number(shift),
            f"{mean(run['training'] for run in runs):.1f}", f"{runs[0]['passes']:g}", f"{runs[0]['copies']:g}",
        ))  # fmt: skip
    seeds = {len(runs) for runs in each.values()}
    said = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else f"{min(seeds)}"
    return f"### {task}\n\n{said} seeds.\n\n{table(header, rows)}"


def learned_part(rivals: Rivals) -> str:
    """Learned against the best fixed rate, other groupings, and the number of masks."""
    if not rivals:
        return ""
    pairs = (("held-out", "mc-best"), ("held-out-everywhere", "mc-best-everywhere"), ("held-out-unit", "held-out"),
             ("held-out-model", "held-out"), ("depth-learned", "depth-.1"), ("bound", "mc-best"),
             ("ensemble-learned", "ensemble"))  # fmt: skip
    rows = []
    for ours, theirs in pairs:
        tasks = [each for each in rivals.values() if ours in each and theirs in each]
        if not tasks:
            continue
        cells: list[object] = [label_of(ours), label_of(theirs)]
        for which in ("test", "calibrated"):
            said = [verdict(losses(each[ours], which), losses(each[theirs], which)) for each in tasks]
            gap = mean(
                mean(losses(each[ours], which).values()) - mean(losses(each[theirs], which).values()) for each in tasks
            )
            cells += [
                " / ".join(str(said.count(key)) for key in ("better", "level", "worse")),
                f"{gap:+.3f}".replace("-", "−"),
            ]
        rows.append(cells)
    text = (
        "## What learned rates add\n\nThe same network with other rates: tasks where the first is better, level,"
        " worse, and the mean difference of the losses (below 0 the first is better).\n\n"
    )
    text += table(("first", "second", "NLL", "difference", "calibrated NLL", "difference"), rows)
    counted = [str(n) for n in (1, 2, 5, 10, 20, 50)]
    lines = []
    for name in ("held-out", "held-out-everywhere", "mc-best", "mc-best-everywhere", "bound-everywhere"):
        tasks = [each[name] for each in rivals.values() if name in each]
        if tasks:
            lines.append((label_of(name), *(
                number(mean(run["masks"][n] for runs in tasks for run in runs.values())) for n in counted)))  # fmt: skip
    return (
        text
        + "\nNLL by the number of masks, mean over the tasks that have the method.\n\n"
        + table(("masks", *counted), lines)
    )


def draw_figure(rivals: Rivals, path: Path) -> None:
    """Calibrated loss of every contestant beside a network without dropout, against the cost of training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    panel = figure.subplots()
    for name, (_, label) in CONTESTANTS.items():
        tasks = [each for each in rivals.values() if name in each and "deterministic" in each]
        if not tasks or name == "depth-.1" or name == "depth-learned":
            continue
        base = [mean(losses(each["deterministic"], "calibrated").values()) for each in tasks]
        loss = mean(
            100 * (mean(losses(each[name], "calibrated").values()) / b - 1) for each, b in zip(tasks, base, strict=True)
        )
        cost = mean(mean(run["training"] for run in each[name].values()) for each in tasks)
        passes = next(iter(tasks[0][name].values()))["passes"]
        ours = label.startswith("**")
        panel.scatter(cost, loss, s=20 + 4 * passes, color="#c44e52" if ours else "#4c72b0", alpha=0.8)
        panel.annotate(label.strip("*"), (cost, loss), fontsize=7, xytext=(5, 3), textcoords="offset points")
    panel.set_xscale("log")
    panel.set(xlabel="training, in plain runs (size: passes of a prediction)",
              ylabel="calibrated NLL beside no dropout, %, mean over tasks")  # fmt: skip
    panel.grid(alpha=0.3)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=120, format="png", metadata={"Software": ""})


# ------------------------------------------------------------------------------------------------------------- regression


def uci_part(uci: Mapping[str, dict[str, Any]]) -> str:
    if not uci:
        return ""
    digits = {"kin8nm": 3, "naval": 5}
    parts = [
        "## Regression: nine UCI sets\n\nGal's fixed splits (20, five of protein), one hidden layer of 50 units (100"
        " for"
        " protein), Gaussian noise of one variance. In place of a grid of rates, one run on four fifths of a split's"
        " training"
        " part learns them. The noise and the number of steps are chosen on the other fifth, as the published code"
        " chooses τ."
        " Then the network is trained on the whole part at these rates, and 1,000 masks are averaged. Steps are 1,000"
        " to 16,000"
        " of Adam with batches of 128, or 4,000 or 20,000 for the four large sets. The published grid has 400 epochs"
        " or more. ± is the standard error over splits. Published rows are as their source has them.\n"
    ]
    for measure, title in SHORT.items():
        rows = []
        for name, record in uci.items():
            runs = with_choices(record["contestants"])
            cells: list[object] = [name]
            for row in PUBLISHED.values():
                cells.append(as_published(getattr(row, measure)[name]))
            for key in (*UCI_OURS, *UCI_RUN):
                values = [split[measure] for split in runs.get(key, ())]
                shown = digits.get(name, 2) if measure == "rmse" else 2
                cells.append(f"{number(mean(values), shown)} ± {number(error(values), shown)}" if values else "–")
            rows.append(cells)
        header = ("", *(row.label for row in PUBLISHED.values()), *UCI_OURS.values(), *UCI_RUN.values())
        parts.append(f"### {title}\n\n{table(header, rows)}")
    rows = []
    for key, label in UCI_OURS.items():
        sets = {name: record for name, record in uci.items() if key in with_choices(record["contestants"])}
        for row, published in PUBLISHED.items():
            found = counts(sets, key, row)
            cells = [label.strip("*"), published.label]
            for measure in SHORT:
                one = found[measure]
                lost = f" ({', '.join(one['worse'])})" if one["worse"] else ""
                cells.append(f"{len(one['better'])} / {len(one['level'])} / {len(one['worse'])}{lost}")
            rows.append(cells)
    parts.append(
        "Sets where it is better, level, worse (level: within two of its standard errors, or the rounding of what was"
        " published):\n\n" + table(("of this library", "beside", "RMSE", "log likelihood"), rows)
    )
    parts.append("Published:\n\n" + "".join(f"- {row.label}: {row.source}.\n" for row in PUBLISHED.values()))
    return "\n".join(parts)


def origin(uci: Mapping[str, Any], rivals: Rivals) -> str:
    found = [record["provenance"] for record in uci.values()]
    found += [run["provenance"] for each in rivals.values() for runs in each.values() for run in runs.values()]
    if not found:
        return ""
    commits = ", ".join(sorted({each["commit"][:7] for each in found if each["commit"]}))
    dates = sorted(each["date"][:10] for each in found)
    versions = ", ".join(sorted({each["versions"]["torch"] for each in found}))
    hardware = "; ".join(sorted({str(each["hardware"]) for each in found}))
    return (
        "## Where the numbers come from\n\nRecords and commands are in [the"
        " experiment](../experiments/uncertainty/README.md),"
        f" one JSON for each set and task. Commits {commits}, {dates[0]} to {dates[-1]}, torch {versions},"
        f" {hardware}. No number"
        " that laplace-torch or ivon-opt publish is of a task of this size: none is reproduced here.\n"
    )
