"""The service's benchmark asks a real service, and notices a wrong answer."""

import json
from pathlib import Path

import pytest

from benchmarks.service import Checked, main
from lbdrop.recommend import Recommender
from lbdrop.recommend.data.shop import generate_shop


@pytest.mark.process
def test_small_run_loses_no_answer_and_records_rates_waits_and_memory(tmp_path: Path) -> None:
    main(data="shop", clients=[1, 3], requests=20, total=40, epochs=1, users=15, idle=20, seconds=0.5,
         out=tmp_path / "service.json")  # fmt: skip
    record = json.loads((tmp_path / "service.json").read_text())
    assert [level["clients"] for level in record["levels"]] == [1, 3]
    assert all(level["answered"] == 20 and 0 < level["p50_ms"] <= level["p99_ms"] for level in record["levels"])
    assert record["checked"]["wrong"] == 0
    assert record["checked"]["answers"] >= 80
    assert len(record["memory"]["resident_mib"]) > 2
    idle = record["idle"]
    assert (idle["open_at_the_end"], idle["lost_at_sigterm"], idle["log_bytes"]) == (20, 0, 0)
    assert idle["answered"] == idle["asked"] >= 640
    assert {"commit", "hardware", "versions"} <= set(record["provenance"])


def test_checker_counts_other_items_scores_or_bytes_as_wrong() -> None:
    model = Recommender("ease").fit(generate_shop(users=40, items=30, groups=2).interactions)
    checked = Checked.of(model, 2)

    def answer(question: int) -> dict:
        items = [{"item_id": row["item_id"], "score": row["score"]} for row in checked.expected[question][:10]]
        return {"results": [{"user_id": checked.users[question], "items": items}]}

    wrong_score, wrong_item = answer(0), answer(0)
    wrong_score["results"][0]["items"][3]["score"] += 0.01
    wrong_item["results"][0]["items"][0]["item_id"] = "nothing"
    cases = [
        (0, answer(1)),
        (0, wrong_score),
        (0, wrong_item),
        (0, {"results": [answer(0)["results"][0] | {"items": []}]}),
    ]
    for number, (question, content) in enumerate(cases):
        checked.check(question, 200, json.dumps(content).encode())
        assert checked.wrong == number + 1
    checked.check(0, 503, b"{}")
    assert checked.wrong == len(cases) + 1
    right = json.dumps(answer(0)).encode()
    checked.check(0, 200, right)
    checked.check(0, 200, right)
    assert checked.wrong == len(cases) + 1
    checked.check(0, 200, right + b" ")  # the same answer in other bytes: somebody else's company was felt
    assert checked.wrong == len(cases) + 2
    assert checked.difference == pytest.approx(0, abs=0.1)
