"""A record's schema names the first place that is not as it should be, and lets everything else alone."""

from typing import Any

import pytest

from experiments.report.schema import Wrong, fields, item, listed, mapped, maybe, number, pairs, text, truth, whole

RUN = fields(
    {"seed": whole, "label": text, "test": fields({"nll": number}), "rates": mapped(listed(number, least=1))},
    {
        "ood": maybe(fields({"right": truth})),
        "curve": pairs(fields({"x": listed(number), "y": listed(number)}), "x", "y"),
    },
)
GOOD: dict[str, Any] = {"seed": 0, "label": "a", "test": {"nll": 0.5}, "rates": {"fc": [0.1, 1]}, "whatever": object()}


@pytest.mark.parametrize(
    "more", [{}, {"ood": None}, {"ood": {"right": True}}, {"curve": {"x": [1, 2], "y": [3, 4]}}, {"rates": {}}]
)
def test_valid_record_passes(more: dict[str, Any]) -> None:
    RUN("", GOOD | more)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": -1}, "a whole number from 0 on as seed, got -1"),
        ({"seed": True}, "a whole number from 0 on as seed, got True"),
        ({"seed": 1.0}, "a whole number from 0 on as seed, got 1.0"),
        ({"label": None}, "text as label, got None"),
        ({"test": []}, "a mapping with nll as test, got []"),
        ({"test": {}}, "something as test.nll, got None"),
        ({"test": {"nll": float("nan")}}, "a finite number as test.nll, got nan"),
        ({"test": {"nll": 1e16}}, "a finite number as test.nll, got 1e+16"),
        ({"test": {"nll": False}}, "a finite number as test.nll, got False"),
        ({"rates": {"fc": []}}, "a list of at least 1 as rates.fc, got []"),
        ({"rates": {"fc": [0.5, "x" * 99]}}, "a finite number as rates.fc[1], got 'xxx"),
        ({"rates": [1]}, "a mapping as rates, got [1]"),
        ({"ood": {"right": 1}}, "true or false as ood.right, got 1"),
        ({"curve": {"x": [1], "y": []}}, "lists of one length as curve, got [1, 0]"),
    ],
)
def test_first_wrong_place_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(Wrong) as error:
        RUN("", GOOD | change)
    assert str(error.value).startswith(said)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("value", [1.5, None, True, [1]])
def test_item_is_a_whole_number_or_text(value: Any) -> None:
    item("item", 3)
    item("item", "tea")
    with pytest.raises(Wrong, match="a whole number or text as item"):
        item("item", value)
