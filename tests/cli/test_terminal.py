"""Ids and titles are data: no command lets their markup or escape sequences reach a terminal."""

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from helpers.checkerboard import checkerboard
from typer.testing import CliRunner

from lbdrop.cli import app
from lbdrop.recommend import Recommender

EVIL = "[bold red]\x1b]0;owned\x07\x1b[31m\u202e<b>{}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evil")
    likes = checkerboard().select(pl.format(EVIL, name).alias(name) for name in ("user_id", "item_id"))
    Recommender("ease").fit(likes).save(folder / "model")
    Recommender("sivae-lbd", epochs=3, hidden=4, latent=2, validation=0, progress=False).fit(likes).save(
        folder / "rates"
    )
    items = likes["item_id"].unique().sort()
    pl.DataFrame({"item_id": items, "title": [EVIL.format("title")] * len(items)}).write_parquet(
        folder / "titles.parquet"
    )
    return folder


def test_commands_show_markup_and_escape_sequences_as_text(model: Path) -> None:
    loaded = Recommender.load(model / "model")
    assert loaded.interactions_ is not None
    item, user = loaded.items_[0], loaded.interactions_.users[0]
    titles = ("--titles", model / "titles.parquet")
    for words in (
        ("recommend", "similar", model / "model", item, *titles),
        ("recommend", "recommend", model / "model", user, *titles),
        ("recommend", "explain", model / "model", item, "--user", user, *titles),
        ("rates", model / "rates"),
        ("doctor", model / "model"),
    ):
        ended = CliRunner().invoke(
            app, list(map(str, words)), env={"COLUMNS": "300", "FORCE_COLOR": "", "NO_COLOR": "1"}
        )
        assert ended.exit_code == 0, (words, ended.output)
        assert not {"\x1b", "\x07", "\u202e"} & set(ended.output), words
        if words[0] != "doctor":
            assert "[bold red]" in ended.output, words
    wrong = CliRunner().invoke(app, ["recommend", "similar", str(model / "model"), "\x1b[31mno such item"])
    assert wrong.exit_code == 1
    assert "\x1b" not in wrong.stderr


@pytest.mark.process
@pytest.mark.parametrize(
    ("command", "out", "encoding", "code", "said"),
    [
        (("fit", "--help"), os.devnull, "ascii", 0, ""),
        (("methods",), "/dev/full", "utf-8", 1, "what is printed: No space left on device\n"),
    ],
    ids=["terminal without signs of its tables", "full disk behind a pipe"],
)
def test_printing_ends_in_one_line_wherever_it_goes(
    command: tuple[str, ...], out: str, encoding: str, code: int, said: str
) -> None:
    words = [sys.executable, "-m", "lbdrop", "recommend", *command]
    environment = os.environ | {"PYTHONIOENCODING": encoding, "COLUMNS": "200"}
    with open(out, "w") as stdout:
        done = subprocess.run(words, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (code, said)
