"""The table of the default beside its rivals in README.md, from the records of ``beside.py``.

python -m experiments.collaborative.beside_table          # writes it
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import norm

from lbdrop.io.records import read_json

__all__ = ["filled", "table"]

HERE = Path(__file__).parent
BEGIN, END = "<!-- beside -->", "<!-- end of beside -->"
TITLES = {
    "ml-1m": "MovieLens-1M", "ml-100k": "MovieLens-100K", "shop": "the demo's shop", "netflix-sample": "sample of Netflix",
    "netflix": "Netflix", "gowalla": "Gowalla", "gowalla-lightgcn": "Gowalla, LightGCN's split",
}  # fmt: skip
COLUMNS = {
    "default": "`Recommender()`", "blend": "without its network", "edlae": "EDLAE, learned", "ease": "EASE", "ials": "iALS",
    "learned": "its network alone", "fixed": "the network, best fixed rate", "edlae_fixed": "EDLAE, best fixed rate",
}  # fmt: skip

Record = Mapping[str, Any]


def pooled(parts: Sequence[Mapping[str, float]]) -> tuple[float, float, float]:
    """Mean, standard error and p of a difference over the users of all seeds."""
    users = sum(each["users"] for each in parts)
    mean = sum(each["mean"] * each["users"] for each in parts) / users
    error = math.sqrt(sum((each["error"] * each["users"]) ** 2 for each in parts)) / users
    return mean, error, float(2 * norm.sf(abs(mean) / error)) if error > 0 else 1.0


def table(records: Sequence[Record]) -> str:
    """Two tables in Markdown: NDCG@100 and seconds of each contestant, and what the default has more than each."""
    head = ["data", "seeds", *COLUMNS.values(), "seconds: default, EASE"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    rivals = list(COLUMNS)[1:6]
    more = ["data", *(f"minus {COLUMNS[name]}" for name in rivals)]
    below = ["| " + " | ".join(more) + " |", "|---" * len(more) + "|"]
    for name, title in TITLES.items():
        runs = [each for each in records if each["dataset"] == name]
        if not runs:
            continue
        cells = [title, str(len(runs)), *(_measure(runs, each) for each in COLUMNS)]
        lines.append("| " + " | ".join([*cells, f"{_seconds(runs, 'default')}, {_seconds(runs, 'ease')}"]) + " |")
        below.append("| " + " | ".join([title, *(_difference(runs, each) for each in rivals)]) + " |")
    return "\n".join([*lines, "", *below, "", *_parts(records)])


def _parts(records: Sequence[Record]) -> list[str]:
    """What learned dropout has more than the best fixed rate of a grid, in each part."""
    lines = ["| data | EDLAE: learned minus fixed | network: learned minus fixed |", "|---|---|---|"]
    for name, title in TITLES.items():
        runs = [
            each["learned_minus_fixed"] for each in records if each["dataset"] == name and each["learned_minus_fixed"]
        ]
        cells = [_pooled([each[part] for each in runs if part in each]) for part in ("linear", "network")]
        if any(cell != "–" for cell in cells):
            lines.append("| " + " | ".join([title, *cells]) + " |")
    return lines


def filled(text: str, records: Sequence[Record]) -> str:
    """A page with the table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(records)}\n\n{END}{after}"


def read(folder: Path = HERE / "results_beside") -> list[Record]:
    return [read_json(path) for path in sorted(folder.glob("*.json"))]


def _having(runs: Sequence[Record], name: str) -> list[Record]:
    return [each for each in runs if name in each["contestants"]]


def _measure(runs: Sequence[Record], name: str) -> str:
    values = [each["contestants"][name]["mean"]["ndcg@100"] for each in _having(runs, name)]
    return f"{sum(values) / len(values):.4f}" if len(values) == len(runs) else "–"


def _seconds(runs: Sequence[Record], name: str) -> str:
    values = [each["contestants"][name]["seconds"] for each in _having(runs, name)]
    return f"{sum(values) / len(values):,.1f}" if values else "–"


def _difference(runs: Sequence[Record], name: str) -> str:
    parts = [each["default_minus"][name] for each in runs if name in each["default_minus"]]
    return _pooled(parts) if len(parts) == len(runs) else "–"


def _pooled(parts: Sequence[Mapping[str, float]]) -> str:
    if not parts:
        return "–"
    mean, error, p = pooled(parts)
    return f"{mean:+.4f} ± {error:.4f} (p {p:.1g})"


if __name__ == "__main__":
    page = HERE / "README.md"
    page.write_text(filled(page.read_text(encoding="utf-8"), read()), encoding="utf-8")
