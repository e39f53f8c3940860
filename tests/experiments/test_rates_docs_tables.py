"""Pages say what the records say: tables to the last digit, and the counts in their prose."""

from pathlib import Path

import pytest

from experiments.rates import docs_tables
from experiments.rates.run import RESULTS
from lbdrop.errors import DropoutError
from lbdrop.io.records import read_json

ROOT = Path(docs_tables.__file__).parent.parent.parent
WORDS = [
    "none",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
    "twenty-one",
    "twenty-two",
    "twenty-three",
    "twenty-four",
]
SUMMARY = read_json(RESULTS / "summary.json")


def task(nll: float, verdict: str, p: float) -> dict:
    test = {"verdict": verdict, "p": p}
    row = {"nll masks": nll - 1, "nll deterministic": nll, "against_grid": {"masks": test, "deterministic": test}}
    return {
        "seeds": [0, 1, 2],
        "chosen": {how: {"nll": 0.5, "rates": [0.0, 0.1, 0.05]} for how in ("masks", "deterministic")},
        "retrained": {"deterministic": {"nll": 0.25, "balanced-layer": {"verdict": "level", "p": 0.5}}},
        "contestants": dict.fromkeys(
            ("balanced-layer", "balanced-unit", "balanced-model", "tuned-layer", "concrete", "gaussian"), row
        ),
    }


def test_table_line_shows_grid_learned_rates_and_verdicts() -> None:
    whole = {"digits": task(0.12345, "better", 0.00123), "uci-yacht": task(2.0, "worse", 4.6e-5), "elsewhere": {}}
    _, _, digits, yacht = docs_tables.verdicts(whole, "deterministic")
    cell = ".1235, **better** (p .0012)"
    assert digits == f"| digits | 3 | .5000 (0–.1) | {' | '.join([cell] * 6)} | .2500; level |"
    assert "2.000, **worse** (p 4.6e-05)" in yacht
    *_, yacht = docs_tables.verdicts(whole, "masks")
    assert yacht.endswith("1.000, **worse** (p 4.6e-05) | – |")
    assert next(line for line in docs_tables.shortest(whole) if "digits" in line) == (
        "| digits | .5000 | .1235 | **better** (p .0012) |"
    )
    assert docs_tables.counts(whole, "masks")["balanced-layer"] == {"better": 1, "level": 0, "worse": 1}
    of_digits = whole["digits"]["contestants"]
    of_digits["balanced-layer"] = of_digits["balanced-layer"] | {"earlier_rule": True}
    assert list(docs_tables.verdicts(whole, "deterministic"))[2].count(".1235†, **better**") == 1
    del whole["digits"]["contestants"]["concrete"]
    assert "| – | .1235, **better** (p .0012) | .2500; level |" in list(docs_tables.verdicts(whole, "deterministic"))[2]


@pytest.mark.parametrize("page", docs_tables.PAGES)
def test_tables_of_pages_are_those_of_the_records(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert docs_tables.filled(page, text, SUMMARY) == text, "run python -m experiments.rates.docs_tables"
    with pytest.raises(DropoutError, match="got no such place"):
        docs_tables.filled(page, text.replace("<!-- end -->", ""), SUMMARY)


def test_counts_of_pages_are_those_of_the_records() -> None:
    plain, masked = (docs_tables.counts(SUMMARY, how) for how in ("deterministic", "masks"))
    ours = {verdict: WORDS[count] for verdict, count in plain[docs_tables.OURS].items()}
    again = {v: WORDS[count] for v, count in plain[f"{docs_tables.OURS} beside the retrained grid"].items()}
    for page in ("README.md", "docs/how_rates_are_learned.md"):
        said = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert f"on {ours['better']}, level on {ours['level']} and worse on {ours['worse']}" in said, page
        assert f"level on {again['level']} and worse on {again['worse']}" in said, page
    own = " ".join((ROOT / "experiments/rates/README.md").read_text(encoding="utf-8").split())
    total = WORDS[sum(plain[docs_tables.OURS].values())]
    assert (
        f"of {total} tasks it is better on {ours['better']}, level on {ours['level']} and worse on {ours['worse']}"
        in own
    )
    said = {verdict: WORDS[count] for verdict, count in masked[docs_tables.OURS].items()}
    assert f"with 20 masks better on {said['better']}, level on {said['level']} and worse on {said['worse']}" in own
    unit, layer = plain["balanced-unit"], docs_tables.against(RESULTS, "balanced-unit", "deterministic")
    per_unit = f"better than the grid on {WORDS[unit['better']]}, level on {WORDS[unit['level']]} and worse on"
    assert f"{per_unit} {WORDS[unit['worse']]} of {WORDS[sum(unit.values())]} tasks" in own
    assert f"better than per layer on {WORDS[layer['worse']]}, level on {WORDS[layer['level']]} and worse on" in own
    for rival, name in (("concrete", "Concrete"), ("gaussian", "Gaussian")):
        found = {
            verdict: WORDS[count] for verdict, count in docs_tables.against(RESULTS, rival, "deterministic").items()
        }
        assert f"better than {name} on {found['better']} and worse on {found['worse']}" in own
