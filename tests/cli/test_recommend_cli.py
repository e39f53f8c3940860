"""``lbdrop recommend``: from a file to a model to scores, and one line for whatever is wrong with a file."""

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner, Result

from lbdrop.cli import app
from lbdrop.recommend import METHODS, Recommender
from lbdrop.recommend.data.shop import generate_shop
from lbdrop.recommend.linear.methods import LINEAR


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["recommend", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same shop as CSV, TSV and Parquet, and some later customers."""
    folder = tmp_path_factory.mktemp("shop")
    rows = generate_shop(users=300, items=60, groups=4, likes=12).interactions
    known, later = rows.filter(pl.col("user_id") < 250), rows.filter(pl.col("user_id") >= 250)
    known.write_csv(folder / "likes.csv")
    known.write_csv(folder / "likes.tsv", separator="\t")
    known.write_parquet(folder / "likes.parquet")
    later.write_csv(folder / "later.csv")
    return folder


@pytest.fixture(scope="module")
def model(shop: Path) -> Path:
    done = call("fit", shop / "likes.csv", "--out", shop / "model", "--epochs", 3, "--validation", 40, "--seed", 2)
    assert done.exit_code == 0, done.output
    assert "best of 3 epochs on validation users" in done.output
    assert str((shop / "model").resolve()) in done.output
    return shop / "model"


def test_command_fits_the_same_model_as_the_library(shop: Path, model: Path) -> None:
    expected = Recommender(epochs=3, validation=40, seed=2, progress=False).fit(pl.read_csv(shop / "likes.csv"))
    assert Recommender.load(model).recommend([0, 5], k=4).equals(expected.recommend([0, 5], k=4))


@pytest.mark.parametrize("name", ["likes.csv", "likes.tsv", "likes.parquet"])
def test_file_formats_give_the_same_model(name: str, shop: Path, tmp_path: Path) -> None:
    options = ("--method", "ease", "--set", "regularisation=20", "--out", tmp_path / "ease")
    assert call("fit", shop / name, *options).exit_code == 0
    loaded = Recommender.load(tmp_path / "ease")
    expected = Recommender("ease", regularisation=20).fit(pl.read_csv(shop / "likes.csv"))
    assert loaded.recommend([3], k=5).equals(expected.recommend([3], k=5))


def test_renamed_columns_of_ratings_become_likes(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    path.write_text(
        "who,what,stars\n" + "".join(f"u{u},{i},{5 if (u + i) % 2 else 1}\n" for u in range(9) for i in range(6))
    )
    options = ("--user", "who", "--item", "what", "--weight", "stars", "--at-least", 4, "--method", "popularity")
    done = call("fit", path, *options, "--out", tmp_path / "model")
    assert done.exit_code == 0, done.output
    loaded = Recommender.load(tmp_path / "model")
    assert loaded.interactions_ is not None
    assert loaded.interactions_.rows.nnz == 27


def test_scores_of_known_users_and_of_a_file_go_to_parquet(model: Path, shop: Path, tmp_path: Path) -> None:
    done = call("score", model, "--k", 4, "--out", tmp_path / "scores.parquet", "--batch", 16)
    assert done.exit_code == 0, done.output
    assert "1,000 rows" in done.output
    found = pl.read_parquet(tmp_path / "scores.parquet")
    assert found.columns == ["user_id", "item_id", "score", "rank", "uncertainty"]
    loaded = Recommender.load(model)
    assert found["item_id"].equals(loaded.recommend(k=4)["item_id"])
    done = call("score", model, shop / "later.csv", "--k", 3, "--out", tmp_path / "later.parquet", "--samples", 0)
    assert done.exit_code == 0, done.output
    expected = loaded.recommend(pl.read_csv(shop / "later.csv"), k=3, samples=0)
    assert pl.read_parquet(tmp_path / "later.parquet")["item_id"].equals(expected["item_id"])


def test_viewed_items_are_scored_with_their_option(model: Path, tmp_path: Path) -> None:
    assert call("score", model, "--k", 60, "--include-viewed", "--out", tmp_path / "all.parquet").exit_code == 0
    assert len(pl.read_parquet(tmp_path / "all.parquet")) == 250 * 60


def test_measures_are_shown_and_written(model: Path, shop: Path, tmp_path: Path) -> None:
    done = call("evaluate", model, shop / "later.csv", "--out", tmp_path / "report.json")
    assert done.exit_code == 0, done.output
    report = Recommender.load(model).evaluate(pl.read_csv(shop / "later.csv"))
    assert f"{report.mean['ndcg@100']:.4f}" in done.output
    assert json.loads((tmp_path / "report.json").read_text())["mean"] == report.mean


def test_similar_items_are_listed(model: Path) -> None:
    done = call("similar", model, "baking-00001", "camping-00002", "--k", 3)
    assert done.exit_code == 0, done.output
    for item in Recommender.load(model).similar_items(["baking-00001", "camping-00002"], k=3)["similar_item_id"]:
        assert item in done.output


def test_recommendations_and_reasons_come_with_titles(model: Path, shop: Path) -> None:
    items = generate_shop(users=300, items=60, groups=4, likes=12).items
    items.write_csv(shop / "items.csv")
    title = dict(items.select("item_id", "title").iter_rows())
    loaded, titles = Recommender.load(model), ("--titles", shop / "items.csv")
    expected = loaded.recommend([0, 5], k=3)
    done = call("recommend", model, 0, 5, "--k", 3, *titles)
    assert done.exit_code == 0, done.output
    for item, score in expected.select("item_id", "score").iter_rows():
        assert any(item in line and title[item] in line and f"{score:.4f}" in line for line in done.output.splitlines())
    best = expected["item_id"][0]
    done = call("explain", model, best, "--user", 0, *titles)
    for item, effect in loaded.explain(0, best).select("item_id", "effect").iter_rows():
        assert any(title[item] in line and f"{effect:.4f}" in line for line in done.output.splitlines())
    assert title["baking-00001"] in call("similar", model, "baking-00001", *titles).output


def test_new_person_is_asked_for_by_likes(model: Path) -> None:
    liked = ["baking-00001", "baking-00002"]
    history = pl.DataFrame({"user_id": ["new"] * 2, "item_id": liked})
    first, second = Recommender.load(model).recommend(history, k=2)["item_id"]
    options = [part for item in liked for part in ("--like", item)]
    done = call("recommend", model, *options, "--k", 1, "--exclude", first)
    assert done.exit_code == 0, done.output
    assert second in done.output
    assert first not in done.output
    assert "baking-00001" in call("explain", model, first, *options).output


def test_every_method_is_listed() -> None:
    listed = {line.split()[0] for line in call("methods").output.splitlines() if line.strip()}
    assert {*METHODS, *LINEAR} <= listed


def test_wrong_files_and_arguments_are_one_line(model: Path, shop: Path, tmp_path: Path) -> None:
    (tmp_path / "plain.csv").write_text("a,b\n1,2\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "nulls.csv").write_text("user_id,item_id\n1,\n2,x\n")
    (tmp_path / "half.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "words.csv").write_text("user_id,item_id\none,two\n")
    (tmp_path / "notes.txt").write_text("dear diary")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    out = ("--out", tmp_path / "new")
    for arguments, words in (
        (("fit", tmp_path / "none.csv", *out), "got nothing there"),
        (("fit", tmp_path, *out), "want files of one kind, got .csv, .parquet"),
        (("fit", tmp_path / "notes.txt", *out), "want a file that ends in"),
        (("fit", tmp_path / "plain.csv", *out), "got ['a', 'b'] without ['user_id', 'item_id']; see --user and --item"),
        (("fit", tmp_path / "empty.csv", *out), "cannot be read as a table"),
        (("fit", tmp_path / "half.parquet", *out), "cannot be read as a table"),
        (("fit", tmp_path / "nulls.csv", *out), "item_id: want no null"),
        (("fit", shop / "likes.csv", "--method", "magic", *out), "method: want one of"),
        (("fit", shop / "likes.csv", "--dropout", "magic", *out), "dropout: want one of"),
        (("fit", shop / "likes.csv", "--set", "hidden", *out), "--set: want NAME=VALUE"),
        (("fit", shop / "likes.csv", "--set", "hiden=3", *out), "settings: no hiden"),
        (("fit", shop / "likes.csv", "--at-least", 4, *out), "at_least: want a column 'weight'"),
        (("fit", shop / "likes.csv", "--validation", 250, *out), "validation: want fewer than the 250 users"),
        (("fit", shop / "likes.csv", "--out", tmp_path / "mine"), "got something else"),
        (("fit", shop / "likes.csv", "--out", tmp_path / "plain.csv" / "model"), "cannot write to"),
        (("evaluate", tmp_path / "none", shop / "later.csv"), "got no model.json there"),
        (("evaluate", model, tmp_path / "words.csv"), "want users with items to find, got none among 1"),
        (("evaluate", model, shop / "likes.csv"), "want users with items to find"),
        (("score", model, tmp_path / "plain.csv", *out), "without ['user_id', 'item_id']"),
        (("score", model, "--out", tmp_path), "want a new or empty folder, or one of scores alone"),
        (("score", model, shop / "later.csv", "--out", shop), "want another place than that of the histories"),
        (("score", model, *out, "--engine", "spark"), "engine: want one of local, ray, got 'spark'"),
        (("score", model, *out, "--item", "sku"), "--item: want a file of interactions with that column, got none"),
        (("score", model, *out, "--address", "auto"), "address: want it with engine='ray' alone"),
        (("similar", model, "gold"), "1 unknown, the first 'gold'"),
        (("recommend", model), "or --like for a new person, got neither"),
        (("recommend", model, 3, "--like", "baking-00001"), "got both"),
        (("recommend", model, "--like", "gold"), "1 unknown, the first 'gold'"),
        (("recommend", model, 999), "1 unknown, the first 999"),
        (("explain", model, "gold", "--user", 3), "1 unknown, the first 'gold'"),
        (("explain", model, "baking-00001"), "got neither"),
    ):
        done = call(*arguments)
        assert done.exit_code == 1, (arguments, done.output, done.exception)
        assert words in done.stderr, (arguments, done.stderr)
        assert len(done.stderr.strip().splitlines()) == 1, (arguments, done.stderr)
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "mine" / "thesis.tex").exists()


@pytest.mark.process
def test_help_needs_none_of_the_recommenders_packages() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['polars', 'narwhals', 'scipy', 'lightning', 'safetensors']));"
        "from typer.testing import CliRunner; from lbdrop.cli import app;"
        "done = CliRunner().invoke(app, ['recommend', 'fit', '--help']); assert done.exit_code == 0, done.output;"
        "done = CliRunner().invoke(app, ['recommend', 'similar', 'model', 'x']); print(done.exit_code, done.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("1 ")
    assert "pip install 'lbdrop[recommend]'" in done.stdout


def test_commands_show_an_example() -> None:
    for verb in ("fit", "evaluate", "score", "similar", "recommend", "explain", "methods"):
        assert f"lbdrop recommend {verb} " in call(verb, "--help").output


def test_items_of_a_table_that_nobody_has_are_recommended(shop: Path, tmp_path: Path) -> None:
    items = generate_shop(users=300, items=60, groups=4, likes=12).items
    fresh = pl.DataFrame({"item_id": ["brand-new"], "title": ["Brand new"], "group": [items["group"][0]]})
    pl.concat([items.select(fresh.columns), fresh]).write_csv(tmp_path / "items.csv")
    options = ("--method", "ease", "--item-features", tmp_path / "items.csv", "--out", tmp_path / "model")
    done = call("fit", shop / "likes.csv", *options)
    assert done.exit_code == 0, done.output
    loaded = Recommender.load(tmp_path / "model")
    assert loaded.new_items_ is not None
    assert [step["name"] for step in loaded.new_items_.plan] == ["group"]
    liked = items.filter(group=items["group"][0])["item_id"][:3]
    likes = [part for item in liked for part in ("--like", item)]
    assert (
        "Brand new"
        in call("recommend", tmp_path / "model", *likes, "--titles", tmp_path / "items.csv", "--k", 60).output
    )
    (tmp_path / "bad.csv").write_text("sku,group\n1,2\n")
    wrong = call("fit", shop / "likes.csv", "--item-features", tmp_path / "bad.csv", "--out", tmp_path / "other")
    assert "want the column item_id, got ['sku', 'group']" in wrong.stderr
