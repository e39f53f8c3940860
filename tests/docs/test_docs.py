"""Documentation cannot rot: its code is run, its links lead somewhere, and its numbers are those of the results."""

import json
import re
from pathlib import Path

import pytest
from helpers.documented import PAGES, ROOT, name
from helpers.page import outputs, outputs_in_a_process

from benchmarks import overhead_page
from benchmarks.recommender_peers import table as peers_table

TEXTS = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "LOG.md", *sorted((ROOT / "experiments").glob("*/README.md"))]


def code(path: Path) -> str:
    """The Python blocks of a page at their own lines, found line by line: not as those that run are, to compare with."""
    inside, lines = False, []
    for line in path.read_text().splitlines():
        fence = line.startswith("```")
        lines.append(line if inside and not fence else "")
        if fence:
            inside = not inside and line.strip() == "```python"
    return "\n".join(lines)


def shape(text: str) -> list[str]:
    """Words without their numbers, which differ between machines."""
    return re.sub(r"\d[\d.]*(?:e-?\d+)?", "0", text).split()


TUTORIALS = [page for page in PAGES if page.parent.name == "tutorials"]


def check_outputs(found: list[tuple[str, str]]) -> None:
    for said, shown in found:
        assert shape(said) == shape(shown), said


@pytest.mark.process
@pytest.mark.parametrize("page", [page for page in PAGES if page not in TUTORIALS], ids=name)
def test_page_blocks_run_and_print_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # what a page writes beside itself stays out of the checkout
    check_outputs(outputs(page))


@pytest.mark.process
@pytest.mark.parametrize("page", TUTORIALS, ids=name)
def test_tutorial_runs_and_prints_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    check_outputs(outputs_in_a_process(page, tmp_path))


def test_outputs_may_differ_in_numbers_alone() -> None:
    assert shape("rate 0.25, 1 left") == shape("rate 1e-3,\n12 left")
    assert shape("rate 0.25, 1 left") != shape("rate 0.25, 1 right")


def test_page_code_keeps_its_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text\n\n```python\na = 1\n```\n\n```\nnot code\n```\n\n```python\nb = a\n```\n")
    assert code(page).splitlines() == ["", "", "", "a = 1", "", "", "", "", "", "", "", "b = a"]


@pytest.mark.parametrize("page", TEXTS, ids=name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        file, _, heading = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{name(page)}: {target}"
        if heading:
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            assert heading in [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings], target


def table(name: str) -> list[str]:
    """The numbers of one marked table of the results page."""
    text = (ROOT / "docs/results.md").read_text().partition(f"<!-- {name} table -->")[2].partition("\n\n")[0]
    rows = text.strip().splitlines()[2:]
    return re.findall(r"(?<![\w.])\d[\d.]*(?:e-?\d+)?", "\n".join(rows))


@pytest.mark.parametrize("data", ["ml-100k", "ml-1m"])
def test_peers_table_is_that_of_the_json(data: str) -> None:
    record = json.loads((ROOT / "benchmarks/results/recommender_peers.json").read_text())
    page = (ROOT / "docs/recommender.md").read_text().partition(f"<!-- peers {data} table -->\n")[2]
    assert page.partition("\n\n")[0] == peers_table(record, data)


def test_cold_items_numbers_match_json() -> None:
    runs = json.loads((ROOT / "benchmarks/results/cold_items.json").read_text())["runs"]
    page = (ROOT / "docs/recommender.md").read_text().partition("<!-- cold items table -->")[2].partition("\n\n")[0]
    shown = re.findall(r"\d\.\d{4}", page)
    known = {
        f"{sum(run['contestants'][name][measure][0] for run in runs) / len(runs):.4f}"
        for name in runs[0]["contestants"]
        for measure in ("ndcg@100", "recall@20")
    }
    assert set(shown) == known


def test_results_page_toy_numbers_match_json() -> None:
    results = (ROOT / "experiments/toy/results/toy.json").read_text()
    known = set(re.findall(r"\d[\d.]*(?:e-?\d+)?", results))
    assert len(table("toy")) >= 16
    assert not set(table("toy")) - known


def test_results_page_cifar10_numbers_match_table() -> None:
    results = (ROOT / "experiments/cifar10/results/table.md").read_text()
    known = set(re.findall(r"(?<![\w.])\d[\d.]*", results))
    assert len(table("cifar10")) > 60
    assert not set(table("cifar10")) - known


def test_camvid_numbers_match_table() -> None:
    results = (ROOT / "experiments/camvid/results/table.md").read_text()
    known = set(re.findall(r"(?<![\w.])\d[\d.]*", results))
    assert len(table("camvid")) > 50
    assert not set(table("camvid")) - known - {"0.2"}  # the fixed rate
    page = (ROOT / "experiments/camvid/README.md").read_text().partition("## Finding")[2]
    rows = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    assert not set(re.findall(r"(?<![\w.])\d[\d.]*", rows)) - known


def test_results_page_variance_numbers_match_json() -> None:
    record = json.loads((ROOT / "benchmarks/results/variance.json").read_text())
    known = {"1", "2", "4", "8"}
    for cell in record["summary"]:
        if cell["scale"] == "inverted":
            for entry in cell["estimators"].values():
                known |= {f"{entry['relative_per_call']:.3f}", f"{entry['merit']:.3f}", f"{entry['time_relative']:.3g}"}
    assert len(table("variance")) > 30
    assert not set(table("variance")) - known


def test_results_page_overhead_numbers_match_json() -> None:
    known = {"20"}
    for device in ("cpu", "cuda"):
        record = json.loads((ROOT / f"benchmarks/results/overhead-vgg19-{device}.json").read_text())
        for group in (value for value in record.values() if "contestants" in value):
            known |= {f"{entry['time_ratio']:.2f}" for entry in group["contestants"].values()}
    assert len(table("overhead")) > 10
    assert not {n for n in table("overhead") if "." in n} - known


def test_results_page_cost_tables_are_made_from_json() -> None:
    page = (ROOT / "docs/results.md").read_text()
    assert page.count("<!-- overhead table: ") == 2
    assert overhead_page.fill(page) == page


def test_results_page_netflix_numbers_match_table() -> None:
    results = (ROOT / "experiments/collaborative/results/table.md").read_text()
    known = set(re.findall(r"(?<![\w.])\d[\d.]*", results)) | {"20", "50", "100"}
    assert len(table("netflix")) > 24
    assert not set(table("netflix")) - known


def test_results_page_recommender_numbers_match_json() -> None:
    record = json.loads((ROOT / "benchmarks/results/recommender-cuda.json").read_text())
    known = {"2"}
    for entry in record["epoch"].values():
        known |= {f"{entry['seconds']:.3g}", f"{entry['seconds']:.2f}", f"{entry['speedup_over_dense_loop']:.1f}"}
        known |= {f"{entry['ratio_to_floor']:.1f}"} if "ratio_to_floor" in entry else set()
    assert len(table("recommender")) >= 8
    assert not set(table("recommender")) - known


def test_reliability_fuzz_numbers_match_json() -> None:
    total = json.loads((ROOT / "benchmarks/results/fuzz.json").read_text())["total"]
    row = (ROOT / "docs/reliability.md").read_text().partition("<!-- fuzz table -->")[2].strip().splitlines()[2]
    assert re.findall(r"\d+", row) == [str(total[name]) for name in ("inputs", "refused", "accepted", "tracebacks")]


def test_reliability_big_data_numbers_match_json() -> None:
    record = json.loads((ROOT / "benchmarks/results/big_data.json").read_text())
    page = (ROOT / "docs/reliability.md").read_text()
    assert record["prepare"]["as_expected"]
    assert f"| {record['prepare']['rows']:,}: every count" in page
    assert f"| {record['prepare']['peak_bytes'] / 1e9:.1f} GB |" in page
    assert f"| {record['train']['peak_bytes'] / 1e9:.1f} GB, of which" in page
    assert f"| {record['train']['bytes_of_one_dense_table'] / 1e9:.1f} GB; the plain loss" in page


def test_reliability_page_numbers_match_json() -> None:
    page = (ROOT / "docs/reliability.md").read_text()
    text = " ".join(page.split())  # sentences, whatever their lines
    found = {
        name: json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())
        for name in ("service", "processes-cpu", "scoring", "faults")
    }
    for level in found["service"]["levels"]:
        assert (
            f"| {level['clients']} | {level['requests_per_second']:.0f} | {level['p50_ms']:.1f} | {level['p99_ms']:.1f} | 0 |"
            in page
        )
        assert level["requests"] == level["answered"]
    one, two = (found["processes-cpu"]["processes"][ranks] for ranks in "12")
    assert (
        f"{two['seconds']:.2f} s and one of a single process with one thread {one['seconds']:.2f} s: {two['speed']:.2f} ×"
        in text
    )
    for engine in ("one process", "ray"):
        assert f"| {found['scoring'][engine]['users_per_second']:,.0f} |" in page
    for watched in found["scoring"]["memory"]:
        assert f"{watched['peak_bytes'] / 2**20:,.0f} MiB" in text
    verbs = {verb: counts for verb, counts in found["faults"].items() if "checked" in counts}
    assert {"fit", "score"} <= verbs.keys()
    for verb, counts in verbs.items():
        faults, checked = counts["faults"], counts["checked"]
        kinds = " | ".join(str(faults.get(kind, 0)) for kind in ("moment", "operation", "Ctrl-C", "full disk"))
        whole, same = checked["outputs after a fault, whole"], checked["results the same to the last bit"]
        assert f"| {verb} | {kinds} | {whole} | {same} |" in page


def test_readme_says_what_random_setups_said() -> None:
    found = json.loads((ROOT / "experiments/regret/results/second-verdict.json").read_text())
    text = " ".join((ROOT / "README.md").read_text().split())
    ours = found["summary"]["balanced-layer"]
    assert [len(ours[name]) for name in ("worse", "better", "ruined")] == [2, 16, 0]
    assert f"On [{ours['setups']} random setups]" in text
    assert "worse than a fixed .1 in two, better in sixteen, ruined in none" in text
    assert f"the grid is better by {100 * ours['regret']:.1f} % in the mean" in text


def test_readme_is_read_in_five_minutes() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 900


def test_reliability_numbers_of_tampering_threads_and_idle_clients_match_json() -> None:
    page = (ROOT / "docs/reliability.md").read_text()
    text = " ".join(page.split())
    tampering, threads, idle = (
        json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())
        for name in ("tampering", "threads", "service-idle")
    )
    for damage, counts in (*tampering["kinds"].items(), ("all", tampering["total"])):
        assert f"| {damage} | {counts['tamperings']:,} | {counts['refused']:,} | 0 | 0 | {counts['slow']} | 0 |" in page
    assert f"They were damaged {tampering['total']['tamperings']:,} times" in text
    seconds, processor = tampering["most"]["seconds"], tampering["most"]["processor_seconds"]
    assert f"slowest took {processor:.2f} s of it, and {seconds:.2f} s by the clock" in text
    assert f"largest took {tampering['most']['megabytes_beyond_the_folder']:.1f} MB" in text
    for model, counts in threads["models"].items():
        assert f"| {model} | {counts['predictions']:,} | {counts['right']:,} | 0 | 0 |" in page
    found = idle["idle"]
    assert found["asked"] == found["answered"]
    for words in (
        f"| {found['idle_clients']:,} |", f"| {found['clients']}, {found['seconds']:.0f} s |",
        f"| {found['asked']:,}, {found['answered']:,} |", f"| {found['p99_ms']:.0f}, {found['p99_without_ms']:.0f} |",
        f"| {found['p50_ms']:.1f}, {found['p50_without_ms']:.1f} |", f"| {found['memory_growth_mib']:.1f} |",
        f"| bytes of log | {found['log_bytes']} |", f"of {found['clients']} on their way | {found['lost_at_sigterm']} |",
    ):  # fmt: skip
        assert words in page, words
