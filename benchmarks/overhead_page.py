"""The tables of benchmarks.overhead on the page of results: ``python -m benchmarks.overhead_page`` fills them from the JSON."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["fill", "table"]

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results.md"
MARK = "<!-- overhead table: {device} -->"
TABLE = r"(?:\n\|[^\n]*)*\n?"


def table(record: Mapping[str, Any]) -> str:
    """One row for each network."""
    compiled = any(found["compiled"] for found in record["networks"].values())
    titles = ["network", "default bound", "held-out rule", "ARM", "memory: bound", "held-out", "ARM"]
    titles += ["compiled: bound", "held-out"] if compiled else []
    titles += ["`predict`, 20 masks, in passes", "a loop", "`predict` / loop", "torch-uncertainty", "baal"]
    rows = [titles, ["---"] * len(titles)]
    for name, found in record["networks"].items():
        steps, predicted = found["training"], found["prediction"]
        cells = [f"{steps[each]['time_ratio']:.2f}" for each in ("bound", "held-out rule", "ARM")]
        cells += [f"{steps[each]['memory_ratio']:.2f}" for each in ("bound", "held-out rule", "ARM")]
        if compiled:
            each = found["compiled"]
            cells += [f"{each[rule]['time_ratio']:.2f}" if each else "–" for rule in ("bound", "held-out rule")]
        cells += [f"{predicted[each]['time_ratio']:.1f}" for each in ("predict", "loop")]
        cells.append(f"{predicted['predict']['seconds'] / predicted['loop']['seconds']:.2f}")
        for peer in ("torch-uncertainty", "baal"):
            cells.append(f"{predicted[peer]['time_ratio']:.1f}" if peer in predicted else "–")
        rows.append([name, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def fill(page: str) -> str:
    """The page with its tables made anew."""
    for device in ("cpu", "cuda"):
        path = ROOT / "benchmarks" / "results" / f"overhead-{device}.json"
        mark = MARK.format(device=device)
        if mark in page:
            made = table(json.loads(path.read_text()))
            page = re.sub(re.escape(mark) + TABLE, lambda _, m=mark, t=made: f"{m}\n{t}\n", page)
    return page


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text()))
