"""The page about uncertainty says what the records say."""

from experiments.uncertainty.page import FIGURE, PAGE, page
from experiments.uncertainty.published import PUBLISHED
from experiments.uncertainty.summary import read_rivals, read_uci


def test_page_of_uncertainty_is_made_from_the_records() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(read_uci(), read_rivals())
    assert FIGURE.exists()


def test_records_of_uncertainty_have_the_published_splits() -> None:
    for name, record in read_uci().items():
        assert {len(splits) for splits in record["contestants"].values()} == {5 if name == "protein" else 20}


def test_published_rows_have_all_nine_sets() -> None:
    assert all(len(row.rmse) == len(row.ll) == 9 for row in PUBLISHED.values())
