"""The verdicts in a few columns, for the pages that show them: ``python -m experiments.rates.docs_tables`` writes them there.

A table stands between two comments in a page, so that prose around it stays and numbers cannot go stale (a test compares).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.rates.record import DOCUMENTED, OURS
from experiments.rates.run import RESULTS, read
from experiments.rates.table import by_seed
from experiments.rates.tasks import SLOW, TASKS
from experiments.rates.verdicts import paired
from lbdrop.errors import DropoutError
from lbdrop.io.files import replacing
from lbdrop.io.records import read_json

__all__ = ["PAGES", "against", "counts", "filled", "verdicts"]

ROOT = Path(__file__).parent.parent.parent
SHOWN = {
    "digits": "digits, MLP", "fashion-3000-mlp": "Fashion-MNIST, 3,000 images, MLP",
    "fashion-10000-mlp": "the same with 10,000", "fashion-3000-cnn": "3,000 images, CNN", "uci-wine": "UCI wine",
    "text": "characters, transformer", "ml-1m-dense": "MovieLens-1M, VAE", "cifar10-head": "CIFAR-10, VGG19's head",
}  # fmt: skip
"""What the README's table calls the tasks that it shows."""
Summary = Mapping[str, Any]


def verdicts(whole: Summary, how: str, slow: bool = False) -> Iterator[str]:
    """Every task, or those of networks that learn slowly: the grid, who learns rates, and the grid's choice retrained."""
    columns = " | ".join(DOCUMENTED.values())
    last = "grid's choice retrained; balanced noise per layer against it"
    yield f"| task | seeds | grid, validation-chosen | {columns} | {last} |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for name, found in _tasks(whole, slow):
        grid, again = found["chosen"][how], found["retrained"].get(how)
        low, high = min(grid["rates"]), max(grid["rates"])
        rates = _short(low) if low == high else f"{_short(low)}–{_short(high)}"
        last = "–" if again is None else f"{_number(again['nll'])}; {_verdict(again[OURS])}"
        learned = " | ".join(_cell(found["contestants"].get(who), how) for who in DOCUMENTED)
        yield f"| {name} | {len(found['seeds'])} | {_number(grid['nll'])} ({rates}) | {learned} | {last} |"


def shortest(whole: Summary, how: str = "deterministic") -> Iterator[str]:
    """Grid and balanced noise alone."""
    yield "| task | grid, validation-chosen | balanced noise, one run | verdict of a paired test |"
    yield "|---|---|---|---|"
    for name, found in _tasks(whole):
        if (row := found["contestants"].get(OURS)) is not None:
            grid, learned = _number(found["chosen"][how]["nll"]), _learned(row, how)
            yield f"| {name} | {grid} | {learned} | {_verdict(row['against_grid'][how])} |"


def examples(whole: Summary, how: str = "deterministic") -> Iterator[str]:
    """A few tasks of each kind, wins and losses."""
    yield "| task | grid: 7 runs | its choice retrained: 8 runs | learned: 1 run | against the grid | against the retrained |"
    yield "|---|---|---|---|---|---|"
    for name, found in _tasks(whole):
        if name in SHOWN and (row := found["contestants"].get(OURS)) is not None:
            again = found["retrained"].get(how)
            retrained, last = ("–", "–") if again is None else (_number(again["nll"]), _verdict(again[OURS]))
            grid, verdict = _number(found["chosen"][how]["nll"]), _verdict(row["against_grid"][how])
            yield f"| {SHOWN[name]} | {grid} | {retrained} | {_learned(row, how)} | {verdict} | {last} |"


def counts(whole: Summary, how: str) -> dict[str, Counter[str]]:
    """How often each is better, level and worse than the grid, and balanced noise than the retrained one."""
    found: dict[str, Counter[str]] = {}
    for _, task in _tasks(whole):
        tests = {who: row.get("against_grid", {}).get(how) for who, row in task["contestants"].items()}
        tests[f"{OURS} beside the retrained grid"] = task["retrained"].get(how, {}).get(OURS)
        for who, test in tests.items():
            found.setdefault(who, Counter(better=0, level=0, worse=0)).update([test["verdict"]] if test else [])
    return found


def against(folder: Path, rival: str, how: str) -> Counter[str]:
    """On how many tasks balanced noise per layer is better, level and worse than a rival of the same seeds."""
    found = Counter(better=0, level=0, worse=0)
    for task in (name for name in TASKS if name not in SLOW):
        by = by_seed(read(folder / f"{task}.json"))
        pair = by.get(OURS, {}), by.get(rival, {})
        if seeds := sorted(set.intersection(*map(set, pair))):
            found[paired(*([runs[seed]["test"][how]["nll"] for seed in seeds] for runs in pair))["verdict"]] += 1
    return found


PAGES: dict[str, dict[str, Callable[[Summary], Iterator[str]]]] = {
    "experiments/rates/README.md": {
        "without masks": lambda whole: verdicts(whole, "deterministic"),
        "with masks": lambda whole: verdicts(whole, "masks"),
        "of networks that learn slowly": lambda whole: verdicts(whole, "deterministic", slow=True),
    },
    "docs/how_rates_are_learned.md": {"without masks": shortest},
    "README.md": {"of a few tasks": examples},
}


def filled(page: str, text: str, whole: Summary) -> str:
    """The text of a page with its tables as they are now."""
    for name, lines in PAGES[page].items():
        before, begin, rest = text.partition(f"<!-- verdicts {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not end:
            raise DropoutError(
                f"{page}: want <!-- verdicts {name} --> and <!-- end --> around a table, got no such place"
            )
        text = "\n".join([before + begin, *lines(whole), "", end + after])
    return text


def _tasks(whole: Summary, slow: bool = False) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Those of this experiment, with a whole grid: networks that learn slowly, or all others."""
    names = (name for name in TASKS if (name in SLOW) == slow)
    return ((name, whole[name]) for name in names if name in whole and whole[name]["seeds"])


def _cell(row: Mapping[str, Any] | None, how: str) -> str:
    return "–" if row is None else f"{_learned(row, how)}, {_verdict(row['against_grid'][how])}"


def _learned(row: Mapping[str, Any], how: str) -> str:
    """With a dagger where an earlier rule learned it."""
    return _number(row[f"nll {how}"]) + ("†" if row.get("earlier_rule") else "")


def _verdict(test: Mapping[str, Any]) -> str:
    if test["verdict"] in ("better", "worse"):
        return f"**{test['verdict']}** (p {_short(test['p'], '.2g')})"
    return test["verdict"]


def _number(value: float) -> str:
    return _short(value, ".4f" if abs(value) < 1 else ".3f")


def _short(value: float, form: str = "g") -> str:
    """Without the zero before the point, and with a true minus."""
    return re.sub("^-", "−", re.sub(r"^(-?)0\.", r"\1.", format(value, form)))


if __name__ == "__main__":
    summary = read_json(RESULTS / "summary.json")
    for page in PAGES:
        with replacing(ROOT / page) as beside:
            beside.write_text(filled(page, (ROOT / page).read_text(encoding="utf-8"), summary), encoding="utf-8")
    for how in ("deterministic", "masks"):
        for who, verdict in counts(summary, how).items():
            print(f"{how}: {who} against the grid: {dict(verdict)}")
        for rival in ("balanced-unit", "concrete", "gaussian", "tuned-layer"):
            print(f"{how}: {OURS} against {rival}: {dict(against(RESULTS, rival, how))}")
