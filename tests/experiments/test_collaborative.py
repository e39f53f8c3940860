"""Every row of the recommender's table on a small generated catalogue, the command over it, and what a record holds."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from experiments.collaborative import examples, recipes, samples
from experiments.collaborative.data.prepare import prepare
from lbdrop.cli import app
from lbdrop.errors import DropoutError
from lbdrop.io.manifest import sealed
from lbdrop.recommend import EASE, evaluate
from lbdrop.recommend.data.prepared import Prepared

SMALL: dict[str, Any] = {"epochs": 2, "batch": 20, "hidden": 8, "latent": 4, "pseudo_inputs": 5, "flow_hidden": 8}
FEW = {"wmf": {"factors": 4, "iterations": 2}, "ials": {"factors": 4, "epochs": 2}, "slim": {"iterations": 5}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MovieLens-1M's files for 60 users of two tastes, prepared."""
    random, source = np.random.default_rng(0), tmp_path_factory.mktemp("ml-1m")
    lines = []
    for user in range(1, 61):
        taste = 1 + 20 * (user % 2) + np.arange(20)
        for item in random.choice(taste, 10, replace=False):
            lines.append(f"{user}::{item}::5::{user}")
        lines.append(f"{user}::41::{random.integers(1, 6)}::{user}")
    (source / "ratings.dat").write_text("\n".join(lines) + "\n")
    (source / "movies.dat").write_text("".join(f"{item}::Film {item} (1999)::Drama\n" for item in range(1, 42)))
    out = tmp_path_factory.mktemp("prepared")
    prepare("ml-1m", source, out, allow_partial=True, held_out_users=12)
    return out / "ml-1m"


@pytest.fixture(scope="module")
def split(folder: Path) -> Any:
    return load(folder).split()


def load(folder: Path) -> Prepared:
    from lbdrop.recommend.data.prepared import load_prepared

    return load_prepared(folder)


CAN_RUN = [name for name in recipes.ROWS if name not in recipes.RETIRED]


def small(method: str) -> dict[str, Any]:
    return FEW.get(method, {}) if method in recipes.RIVALS else SMALL


@pytest.mark.parametrize("method", CAN_RUN)
def test_rows_run_and_record_everything(method: str, split: Any) -> None:
    record = recipes.run("ml-1m", method, 0, split, changes=small(method), progress=False)
    assert json.loads(json.dumps(record, allow_nan=False))["method"] == method
    assert record["label"].startswith(recipes.ROWS[method].label)
    for part in ("validation", "test"):
        assert set(record[part]) == {"mean", "standard_error", "users", "coverage", "popularity", "kinds"}
        assert set(record[part]["mean"]) == {"recall@20", "recall@50", "ndcg@100"}
        assert record[part]["users"] == 12
    assert record["data"]["train_users"] == 36
    assert len(record["examples"]) == 3
    assert {"train", "per_epoch", "evaluate"} <= set(record["seconds"])
    if method in recipes.RIVALS:
        chosen = max(record["choice"]["tried"], key=lambda each: each["ndcg@100"])
        assert record["choice"]["chosen"] == chosen["settings"]
        assert record["validation"]["mean"]["ndcg@100"] == chosen["ndcg@100"]
        assert record["history"] == []
    else:
        assert len(record["history"]) == record["settings"]["epochs"] == (1 if method == "recvae" else 2)
        wanted = {"epoch", "loss", "kl", "beta", "keep", "ndcg@100", "seconds"}
        assert all(wanted <= set(epoch) for epoch in record["history"])
        best = max(record["history"], key=lambda epoch: epoch["ndcg@100"])
        assert (record["best"]["epoch"], record["best"]["beta"]) == (best["epoch"], best["beta"])
        assert (record["rates"] is None) == (record["settings"]["dropout"] == "none")


def test_masks_at_test_are_those_that_validation_prefers(split: Any) -> None:
    record = recipes.run("ml-1m", "sivae-lbd", 0, split, changes={**SMALL, "samples": 3}, progress=False)
    tried = {int(masks): found["mean"]["ndcg@100"] for masks, found in record["masks"]["validation"].items()}
    assert set(tried) == {0, 3}
    assert tried[record["masks"]["at_test"]] == max(tried.values()) == record["validation"]["mean"]["ndcg@100"]
    fixed = recipes.run("ml-1m", "vae-drop", 0, split, changes=SMALL, progress=False)
    assert fixed["masks"]["at_test"] == 0


def test_measures_are_those_of_the_chosen_model_on_each_part(split: Any) -> None:
    record = recipes.run("ml-1m", "ease", 0, split, progress=False)
    model = EASE(**record["choice"]["chosen"]).fit(split.train.rows)
    parts = {"validation": evaluate(model, split.validation).mean, "test": evaluate(model, split.test).mean}
    assert parts["validation"] != parts["test"]
    for name, wanted in parts.items():
        assert record[name]["mean"] == pytest.approx(wanted)


def test_same_seed_gives_the_same_record_and_another_does_not(split: Any) -> None:
    first, again, other = (
        recipes.run("ml-1m", "sivae-lbd-one", seed, split, changes=SMALL, progress=False) for seed in (0, 0, 1)
    )
    assert first["test"] == again["test"]
    assert [e["loss"] for e in first["history"]] == [e["loss"] for e in again["history"]]
    assert first["history"][0]["loss"] != other["history"][0]["loss"]


def test_run_needs_only_the_matrices_of_a_split(split: Any) -> None:
    bare = SimpleNamespace(
        train=SimpleNamespace(rows=split.train.rows),
        validation=SimpleNamespace(fold_in=split.validation.fold_in, held_out=split.validation.held_out),
        test=SimpleNamespace(fold_in=split.test.fold_in, held_out=split.test.held_out),
    )
    ours = recipes.run("ml-1m", "vae-drop", 0, bare, changes=SMALL, progress=False)
    whole = recipes.run("ml-1m", "vae-drop", 0, split, changes=SMALL, progress=False)
    assert ours["test"] == whole["test"]
    columns, ids = (record["examples"][0]["shown"][0]["item"] for record in (ours, whole))
    assert split.train.items[columns] == ids


# ------------------------------------------------------------------------------------------------------------- settings


def test_table_has_all_rows_and_both_grids_with_unique_names() -> None:
    runs = list(recipes.contestants("netflix", 2))
    assert len({one.name for one in runs}) == len(runs)
    assert {one.method for one in runs} == set(CAN_RUN)
    assert [one.method for one in runs if one.seed == 1 and one.method in recipes.RIVALS] == []
    for encoder in recipes.GRIDS:
        rates = [0.0 if one.method == "vae" else one.rate for one in recipes.grid("netflix", encoder)]
        assert rates == list(recipes.GRID_RATES)
    assert recipes.Run("netflix", "vae-drop").name == "netflix-vae-drop-0.5-seed0"
    assert recipes.Run("netflix", "ease", 1).name == "netflix-ease-seed1"


def test_schedules_are_the_published_ones_and_stretch_with_epochs_and_batch() -> None:
    s = recipes.settings_of(recipes.Run("netflix", "vae-drop", 0, 0.3))
    assert (s.epochs, s.batch, s.anneal_steps, s.beta_cap, s.rate, s.dropout) == (100, 500, 200_000, 0.2, 0.3, "fixed")
    assert recipes.settings_of(recipes.Run("ml-20m", "vae")).epochs == 200
    short = recipes.settings_of(recipes.Run("netflix", "vae-drop"), {"epochs": 50, "batch": 250})
    assert (short.epochs, short.batch, short.anneal_steps) == (50, 250, 200_000)
    assert recipes.settings_of(recipes.Run("netflix", "vae-drop"), {"epochs": 50}).anneal_steps == 100_000
    assert recipes.settings_of(recipes.Run("netflix", "recvae")).epochs == 50
    assert recipes.settings_of(recipes.Run("netflix", "vae"), {"anneal_steps": 7}).anneal_steps == 7


def test_dense_grid_is_the_dense_encoder_with_a_fixed_rate_or_none() -> None:
    some, none = (recipes.settings_of(recipes.Run("netflix", "vae-dense-drop", 0, rate)) for rate in (0.7, 0.0))
    assert (some.method, some.encoder, some.prior, some.dropout, some.rate) == ("vae-dense-drop", "dense", "normal", "fixed", 0.7)  # fmt: skip
    assert (none.encoder, none.dropout) == ("dense", "none")


def test_row_of_a_rule_that_is_gone_says_where_it_can_be_run() -> None:
    with pytest.raises(DropoutError, match="its records stay; to run it again, check out 1554abc"):
        recipes.Run("ml-1m", "sivae-lbd-dense-tuned")
    assert not [one for one in recipes.contestants("ml-1m") if one.method.endswith("-tuned")]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"dataset": "ml-2m", "method": "vae"}, "want one of ml-20m"),
        ({"dataset": "msd", "method": "magic"}, "want one of sivae-lbd"),
        ({"dataset": "msd", "method": "vae", "rate": 0.3}, "want a method with a grid"),
        ({"dataset": "msd", "method": "vae-drop", "rate": 1.0}, "less than 1"),
    ],
)
def test_wrong_run_is_an_error_that_lists_the_choices(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(DropoutError, match=said):
        recipes.Run(**wrong)
    with pytest.raises(DropoutError, match="no colour"):
        recipes.settings_of(recipes.Run("msd", "vae"), {"colour": 1})


def test_protocol_says_where_a_schedule_is_not_the_published_one(split: Any) -> None:
    scaled = recipes.run("netflix", "vae", 0, split, changes=SMALL, progress=False)
    assert "scaled from 100 epochs of batches of 500" in scaled["protocol"]
    own = recipes.run("ml-1m", "vae", 0, split, changes=SMALL, progress=False)
    assert "our choice" in own["protocol"]


# ---------------------------------------------------------------------------------------------------------------- looks


def test_keep_rates_by_popularity_are_means_of_equally_many_items() -> None:
    likes = torch.arange(40).flip(0)
    found = examples.rates(likes / 40, likes)
    bins = found["by_popularity"]
    assert [part["items"] for part in bins] == [2] * 20
    assert [part["likes"] for part in bins] == [0.5 + 2 * i for i in range(20)]
    assert bins[3]["keep"] == pytest.approx(6.5 / 40)
    assert sum(found["counts"]) == 40
    assert found["keep_of_a_like"] == pytest.approx(float((likes * likes).sum()) / 40 / float(likes.sum()))
    assert examples.rates(torch.tensor(0.25), likes) == {"per": "model", "keep": 0.25, "by_popularity": None}


def test_examples_show_no_item_the_user_has_and_mark_what_was_held_out(split: Any) -> None:
    record = recipes.run("ml-1m", "ease", 0, split, progress=False)
    for example in record["examples"]:
        has, hidden = (
            {split.train.items[int(item)] for item in rows[[example["user"]]].indices}
            for rows in (split.test.fold_in, split.test.held_out)
        )
        assert set(example["has"]) <= has
        assert (example["items"], example["held_out"]) == (len(has), len(hidden))
        assert not {each["item"] for each in example["shown"]} & has
        assert all(each["held_out"] == (each["item"] in hidden) for each in example["shown"])


# -------------------------------------------------------------------------------------------------------------- command


def command(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    return result.exit_code, result.output


def test_command_skips_finished_runs_and_continues(folder: Path, tmp_path: Path) -> None:
    call = ["reproduce", "ml-1m", "--method", "vae-drop,popularity", "--data", folder, "--out", tmp_path, "--epochs", 1]
    call += ["--batch", 20, "--change", "hidden=8", "--change", "latent=4", "--change", "activation=relu"]
    code, output = command(*call)
    assert code == 0, output
    record = json.loads((tmp_path / "ml-1m-vae-drop-0.5-seed0.json").read_text())
    assert (record["settings"]["hidden"], record["settings"]["activation"]) == (8, "relu")
    assert (tmp_path / "ml-1m-popularity-seed0.json").exists()
    (tmp_path / "ml-1m-popularity-seed0.json").unlink()
    code, output = command(*call)
    assert (code, output.count("there already")) == (0, 1)
    assert (tmp_path / "ml-1m-popularity-seed0.json").exists()


def test_failing_run_does_not_end_the_table(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = recipes.run

    def run(name: str, method: str, *rest: Any, **options: Any) -> dict[str, Any]:
        if method == "ease":
            raise DropoutError("no memory")
        return real(name, method, *rest, **options)

    monkeypatch.setattr(recipes, "run", run)
    code, output = command("reproduce", "ml-1m", "--method", "ease,popularity", "--data", folder, "--out", tmp_path)
    assert code == 1
    assert "failed: no memory" in output
    assert "1 of 2 runs failed" in output
    assert [path.name for path in tmp_path.glob("*.json")] == ["ml-1m-popularity-seed0.json"]


def test_interrupted_run_resumes_from_its_state(folder: Path, tmp_path: Path) -> None:
    call = ["reproduce", "ml-1m", "--method", "vae", "--data", folder, "--out", tmp_path, "--resume", "--batch", 20]
    call += ["--change", "hidden=8", "--change", "latent=4", "--change", "anneal_steps=9"]
    assert command(*call, "--epochs", 1)[0] == 0
    path = tmp_path / "ml-1m-vae-seed0.json"
    first = json.loads(path.read_text())
    path.unlink()
    assert command(*call, "--epochs", 2)[0] == 0
    second = json.loads(path.read_text())
    assert second["history"][0] == first["history"][0]
    assert len(second["history"]) == 2


def test_missing_or_other_data_are_errors_with_the_next_step(folder: Path, tmp_path: Path) -> None:
    code, output = command("reproduce", "netflix", "--data", tmp_path / "none", "--out", tmp_path)
    assert code == 1
    assert "lbdrop data prepare netflix" in output.replace("\n", " ")
    code, output = command("reproduce", "netflix", "--data", folder, "--out", tmp_path)
    assert code == 1
    assert "want netflix, got ml-1m" in output
    for wrong, said in ((["--method", "magic"], "want one of"), (["--change", "hidden"], "want name=value"),
                        (["--method", "all", "--rate", 0.3], "want a single method")):  # fmt: skip
        code, output = command("reproduce", "ml-1m", "--data", folder, "--out", tmp_path, *wrong)
        assert code == 1
        assert said in output


def test_sample_follows_the_protocol_on_some_of_the_users(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "SAMPLES", {"ml-1m-sample": samples.Sample(40, 8)})
    prepared = load(folder)
    drawn, again = (samples.split(prepared, "ml-1m-sample") for _ in range(2))
    parts = [set(drawn.train.users), set(drawn.validation.users), set(drawn.test.users)]
    assert [len(part) for part in parts] == [24, 8, 8]
    assert len(set.union(*parts)) == 40
    assert set.union(*parts) < set(prepared.interactions.users)
    assert (again.train.rows != drawn.train.rows).nnz == 0
    whole, same = prepared.split(), samples.split(prepared, "ml-1m")
    assert (whole.train.rows != same.train.rows).nnz == 0


def test_sample_runs_from_the_complete_data_and_is_reported_with_titles(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "SAMPLES", {"netflix-sample": samples.Sample(40, 8)})
    as_netflix = tmp_path / "netflix"
    shutil.copytree(folder, as_netflix)
    manifest = json.loads((as_netflix / "manifest.json").read_text()) | {"name": "netflix"}
    (as_netflix / "manifest.json").write_bytes(sealed(manifest))
    call = [
        "reproduce",
        "netflix-sample",
        "--data",
        as_netflix,
        "--out",
        tmp_path / "runs",
        "--method",
        "ease,popularity",
    ]
    code, output = command(*call)
    assert code == 0, output
    record = json.loads((tmp_path / "runs" / "netflix-sample-ease-seed0.json").read_text())
    assert record["data"]["train_users"] == 24
    code, output = command("report", tmp_path / "runs", "--out", tmp_path / "page", "--data", tmp_path)
    assert code == 0, output
    assert "(1999)" in (tmp_path / "page" / "index.html").read_text()
    code, output = command("reproduce", "netflix-sample", "--data", tmp_path / "none", "--out", tmp_path)
    assert code == 1
    assert "lbdrop data prepare netflix SOURCE" in output.replace("\n", " ")


def test_report_builds_from_the_commands_records_with_titles(folder: Path, tmp_path: Path) -> None:
    call = ["reproduce", "ml-1m", "--data", folder, "--out", tmp_path / "runs", "--epochs", 2, "--batch", 20]
    call += ["--change", "hidden=8", "--change", "latent=4", "--method"]
    assert command(*call, "vae,sivae-lbd,ease,vae-drop")[0] == 0
    assert command(*call, "vae-drop", "--rate", 0.9)[0] == 0
    code, output = command("report", tmp_path / "runs", "--out", tmp_path / "report", "--data", folder)
    assert code == 0, output
    record = json.loads((tmp_path / "runs" / "ml-1m-sivae-lbd-seed0.json").read_text())
    table = (tmp_path / "report" / "table.md").read_text()
    (line, *_) = [line for line in table.splitlines() if line.startswith("| SIVAE+LBDrop, a rate per item |")]
    for name, value in record["test"]["mean"].items():
        assert f"{value:.4f} ± {record['test']['standard_error'][name]:.4f}" in line
    page = (tmp_path / "report" / "index.html").read_text()
    assert "(1999)" in page
    assert (tmp_path / "report" / "grid.png").read_bytes().startswith(b"\x89PNG")
    assert command("report", tmp_path / "runs", "--out", tmp_path / "report", "--data", folder.parent)[0] == 0
