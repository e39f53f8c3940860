"""The page of the docs to look up a model in: made from the record of the zoo, every number and every row.

Run: ``python -m benchmarks.zoo.page``.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lbdrop.io.records import read_json

__all__ = ["EXAMINED", "PAGE", "RESULT", "is_changed", "page"]

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "benchmarks" / "results" / "zoo.json"
PAGE = ROOT / "docs" / "zoo.md"
EXAMINED = ("right", "refused", "wrong")
LIBRARIES = {
    "transformers": "transformers", "timm": "timm", "torchvision": "torchvision", "graphs": "torch_geometric",
    "segmentation": "segmentation-models-pytorch", "tabular": "networks for tables", "forecasting": "neuralforecast",
}  # fmt: skip
ABOUT = """# Look up your model

Small models of other people's libraries were built with random weights and every dropout at .1 or more. Each was converted
in two lines with the defaults; where only a pass shows its draws, with `example=`. A model is *right* if

- its outputs in eval mode are the same, to 1e-5 of the largest;
- with all learned masks off nothing in a training pass is random any more, counted below autograd (draws of Python and of
  numpy are not counted; `convert` warns of them);
- a step on training data and steps with held-out data run, and rates get gradients;
- predictions vary, `bake` gives the outputs of the deterministic pass, the state loads into another conversion, and copies
  and pickles draw what the model draws.
"""


def page(content: Mapping[str, Any]) -> str:
    """The page for a record."""
    models: dict[str, Any] = content["models"]
    examined = {name: each for name, each in models.items() if each["verdict"] in EXAMINED}
    parts = [ABOUT, summary(examined, len(models), content["listed"]), origin(content), trouble(examined)]
    for source, title in LIBRARIES.items():
        parts.append(library(title, of(source, examined)))
    for title, verdict, text in (
        ("Nothing to learn", "draws nothing", "These draw nothing in training, whatever their configuration says."),
        (
            "Not built",
            "not built",
            "The zoo could not make these small, or found no inputs: they say nothing about lbdrop.",
        ),
    ):
        names = [name for name, each in models.items() if each["verdict"] == verdict]
        parts.append(f"## {title}: {len(names)}\n\n{text}\n\n{', '.join(names)}\n")
    return "\n".join(part for part in parts if part)


def of(source: str, models: Mapping[str, Any]) -> dict[str, Any]:
    return {name.partition("/")[2]: each for name, each in models.items() if name.startswith(f"{source}/")}


def table(header: tuple[str, ...], rows: Iterator[tuple[object, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in lines)


def summary(examined: Mapping[str, Any], tried: int, listed: Mapping[str, int]) -> str:
    right = sum(each["verdict"] == "right" for each in examined.values())
    draws, left = (sum(each[key] for each in examined.values()) for key in ("draws", "left"))
    changed = sum(map(is_changed, examined.values()))
    costs = sorted(each["cost"] for each in examined.values() if each.get("cost"))
    rest = (
        f" The zoo lists {sum(listed.values())} models; {tried} were tried so far, in an order that is that of a hash."
    )
    said = (
        f"**{right} of {len(examined)} models that draw are right ({right / len(examined):.1%}). {draws - left:,} of"
        f" {draws:,} random draws have a learned rate ({1 - left / draws:.1%}). Outputs in eval mode changed in {changed}.**"
        f" A step with four masks takes {costs[len(costs) // 2]:g} plain steps of CPU time in the median.{rest}\n\n"
    )

    def rows() -> Iterator[tuple[object, ...]]:
        for source, title in LIBRARIES.items():
            mine = of(source, examined).values()
            count = Counter(each["verdict"] for each in mine)
            drawn, missed = (sum(each[key] for each in mine) for key in ("draws", "left"))
            verdicts = (count[verdict] for verdict in EXAMINED)
            yield title, listed.get(source, 0), len(mine), *verdicts, f"{drawn - missed} of {drawn}"

    return said + table(("library", "listed", "of these, examined and draw", *EXAMINED, "draws learned"), rows())


def is_changed(record: Mapping[str, Any]) -> bool:
    """Whether eval mode computes something else after a conversion, and was not random before."""
    return record.get("eval_equal") is False and not record["eval_random"]


def origin(content: Mapping[str, Any]) -> str:
    """Commands, and where each run was made that a model's record is of."""
    counts = Counter(each["run"] for each in content["models"].values())
    runs = []
    for place, count in sorted(counts.items()):
        run = content["runs"][place]
        packages = {"torch": run["versions"]["torch"]} | run["packages"]
        runs.append(
            f"- {count} models: {run['date'][:10]}, commit {run['commit']}, {run['hardware']},"
            f" {', '.join(f'{name} {version}' for name, version in packages.items())}\n"
        )
    return (
        "Commands: `python -m benchmarks.zoo` in an environment with the extra `zoo`, then `python -m benchmarks.zoo.page`."
        f" Record: [zoo.json](../benchmarks/results/zoo.json), of these runs:\n\n{''.join(runs)}"
    )


def trouble(examined: Mapping[str, Any]) -> str:
    rows = ((name, each["verdict"], cell(each)) for name, each in examined.items() if each["verdict"] != "right")
    return (
        '## Refused or wrong\n\nRefused: an error names the module and the call, and `unreached="warn"` leaves that as it is'
        " and trains the rest. Wrong: something above does not hold.\n\n"
    ) + table(("model", "verdict", "what is said, or what failed"), rows)


def cell(record: Mapping[str, Any]) -> str:
    """What is said of a model that is not right, in one line without bars."""
    failed = {name: record.get("errors", {}).get(name, "") for name in record.get("wrong", ())}
    text = record.get("reason") or "; ".join(f"{name}: {said}" if said else name for name, said in failed.items())
    text = text.partition("; its rate cannot be learned there")[0].replace("\n", " ").replace("|", "\\|")
    return text.replace("<", "&lt;")[:240]


def library(title: str, models: Mapping[str, Any]) -> str:
    def rows() -> Iterator[tuple[object, ...]]:
        for name, each in models.items():
            learned = f"{each['draws'] - each['left']} of {each['draws']}"
            example = "yes" if each.get("needs_example") else ""
            yield name, each["class"], learned, each.get("sites", 0), example, each["verdict"]

    header = ("model", "class", "draws learned", "rates", "needs an example", "verdict")
    return f"## {title}\n\n{table(header, rows())}" if models else ""


def main() -> None:
    """Write the page from the record."""
    PAGE.write_text(page(read_json(RESULT)), encoding="utf-8")


if __name__ == "__main__":
    main()
