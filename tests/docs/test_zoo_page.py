"""The page to look up a model in says what the record of the zoo says."""

from benchmarks.zoo.page import EXAMINED, PAGE, RESULT, is_changed, page
from lbdrop.io.records import read_json


def test_page_of_models_is_made_from_the_record() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(read_json(RESULT))


def test_no_model_of_the_record_computes_anything_else_in_eval_mode() -> None:
    models = {name: each for name, each in read_json(RESULT)["models"].items() if each["verdict"] in EXAMINED}
    assert not [name for name, each in models.items() if is_changed(each)]


def test_each_refused_model_has_a_reason() -> None:
    models = read_json(RESULT)["models"]
    assert all(each["reason"] for each in models.values() if each["verdict"] == "refused")
