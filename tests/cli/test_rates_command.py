"""``lbdrop rates``: the rates of any saved model, the same numbers as the model's own, or one line about why not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import lbdrop
from lbdrop.cli import app
from lbdrop.cli.saved_rates import read_rates
from lbdrop.recommend import Recommender
from lbdrop.recommend.data.shop import generate_shop


def command(*arguments: object, width: int = 100) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["rates", *map(str, arguments)], env={"COLUMNS": str(width)})
    return result.exit_code, result.output


def network(**kwargs: object) -> nn.Module:
    model = nn.Sequential(
        nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 2)
    )
    lbdrop.convert(model, verbose=False, **kwargs)  # type: ignore[arg-type]
    with torch.no_grad():
        for layer in lbdrop.dropout.learned_layers(model).values():
            layer.logit.add_(torch.randn_like(layer.logit))
    return model


PER_UNIT = {"per": "unit", "example": torch.zeros(1, 4)}


@pytest.mark.parametrize("form", ["state.pt", "state.safetensors", "light.ckpt", "folder"])
def test_rates_are_shown_of_every_form_of_a_saved_model(form: str, tmp_path: Path):
    model = network(**PER_UNIT)
    state, path = model.state_dict(), tmp_path / form
    if form == "state.pt":
        torch.save(state, path)
    elif form == "light.ckpt":
        inside = {f"network.{name}": tensor for name, tensor in state.items()}
        torch.save({"epoch": 1, "global_step": 7, "state_dict": inside, "optimizer_states": [{"state": {}}]}, path)
    else:
        path = path if form != "folder" else path / "model.safetensors"
        path.parent.mkdir(exist_ok=True)
        save_file(state, path)
    path = tmp_path / form
    found = read_rates(path)
    for layer, own in zip(found.layers, lbdrop.dropout.learned_layers(model).values(), strict=True):
        assert layer.rates == pytest.approx(own.rate.double(), abs=1e-6)
        assert layer.kind == "per unit"
    code, output = command(path)
    assert code == 0, output
    rate = lbdrop.dropout.learned_layers(model)["2"].rate
    row = rf"2\s+per unit\s+8\s+{rate.mean():.3f}\s+{rate.min():.3f}\s+{rate.max():.3f}"
    assert re.search(row, output)
    assert "14 rates" in output


def test_histogram_counts_each_rate_once_and_its_longest_bar_is_the_fullest_bin(tmp_path: Path):
    model = network(**PER_UNIT)
    torch.save(model.state_dict(), tmp_path / "m.pt")
    rates = torch.cat([layer.rate for layer in lbdrop.dropout.learned_layers(model).values()])
    found = re.findall(r"^(0\.\d)–[01]\.\d\s+(\d+) (█*)", command(tmp_path / "m.pt")[1], re.MULTILINE)
    counts = torch.histc(rates, 10, 0, 1).int().tolist()
    assert [int(count) for _, count, _ in found] == counts
    lengths = [len(bar) for _, _, bar in found]
    assert lengths.index(max(lengths)) == counts.index(max(counts))
    assert all(bool(length) == bool(count) for length, count in zip(lengths, counts, strict=True))


@pytest.mark.parametrize("width", [30, 40, 60, 72, 100])
def test_lines_fit_the_terminal(width: int, tmp_path: Path):
    inside = {f"a.rather.deep.name.of.a.layer.{k}": v for k, v in network(**PER_UNIT).state_dict().items()}
    torch.save(inside, tmp_path / "m.pt")
    code, output = command(tmp_path / "m.pt", width=width)
    assert code == 0
    assert max(map(len, output.splitlines())) <= width


def test_shared_and_rank_rates_are_labelled(tmp_path: Path):
    model = network(per="model")
    torch.save(model.state_dict(), tmp_path / "shared.pt")
    kinds = [layer.kind for layer in read_rates(tmp_path / "shared.pt").layers]
    assert kinds == ["one rate", "one rate, shared with 2"]
    state = {"a.logit": torch.zeros(()), "b.gate.logit": torch.zeros(4)}
    save_file(state, tmp_path / "m.safetensors")
    assert [layer.kind for layer in read_rates(tmp_path / "m.safetensors").layers] == ["one rate", "per rank"]


@pytest.mark.filterwarnings("ignore:validation")
def test_rates_of_two_experts_are_both_shown(tmp_path: Path):
    model = Recommender("experts", epochs=1, validation=30, progress=False)
    model.fit(generate_shop(users=120, items=40, groups=4).interactions).save(tmp_path / "model")
    code, output = command(tmp_path / "model")
    assert code == 0, output
    assert "histories linear" in output
    assert "histories network" in output


def test_recommender_shows_its_most_and_least_dropped_items(tmp_path: Path):
    shop = generate_shop(users=120, items=40, groups=4)
    model = Recommender("sivae-lbd", epochs=1, validation=0, progress=False).fit(shop.interactions)
    model.save(tmp_path / "model")
    code, output = command(tmp_path / "model", "--items", 3)
    assert code == 0, output
    table = model.rates().sort("rate")
    least, most = output.partition("Least dropped items")[2].split("Most dropped items")
    assert all(item in least for item in table["item_id"].head(3).cast(str).to_list())
    assert all(item in most for item in table["item_id"].tail(3).cast(str).to_list())
    assert "40 rates" in output
    one = Recommender(dropout="learned", epochs=1, validation=0, progress=False).fit(shop.interactions)
    one.save(tmp_path / "one")
    assert "1 rate\n" in re.sub(r" +\n", "\n", command(tmp_path / "one")[1])
    code, output = command(tmp_path / "one", "--items", 3)
    assert code == 1
    assert "--items: want a recommender with a rate for each item" in " ".join(output.split())


def plain(path: Path) -> Path:
    torch.save(nn.Linear(2, 2).state_dict(), path / "plain.pt")
    return path / "plain.pt"


def whole(path: Path) -> Path:
    torch.save(nn.Linear(2, 2), path / "whole.pt")  # a pickled module, which is never unpickled
    return path / "whole.pt"


def text(path: Path) -> Path:
    (path / "text.safetensors").write_text("not tensors")
    return path / "text.safetensors"


def baked(path: Path) -> Path:
    torch.save(lbdrop.bake(network()).state_dict(), path / "baked.pt")
    return path / "baked.pt"


def linear(path: Path) -> Path:
    Recommender("ease").fit(generate_shop(users=60, items=20, groups=4).interactions).save(path / "ease")
    return path / "ease"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (plain, "want learned rates"),
        (baked, "before bake or prune"),
        (whole, "got objects, which might run code; save the state alone"),
        (text, "got a file that is damaged, or of another kind"),
        (linear, "want a method with dropout"),
        (lambda path: path / "nowhere", "nothing there"),
        (lambda path: path, "want a saved recommender or *.safetensors"),
    ],
)
def test_model_without_rates_is_one_line_with_the_next_step(make, said: str, tmp_path: Path):
    code, output = command(make(tmp_path))
    assert code == 1
    assert len(output.strip().splitlines()) == 1
    assert said in output


def test_names_from_a_file_are_printed_as_plain_text(tmp_path: Path):
    torch.save({"[red]a\x1b[31m.logit": torch.zeros(2)}, tmp_path / "m.pt")
    code, output = command(tmp_path / "m.pt")
    assert code == 0
    assert "[red]a" in output
    assert "\x1b" not in output


@pytest.mark.process
def test_pipe_gets_no_colour(tmp_path: Path):
    torch.save(network().state_dict(), tmp_path / "m.pt")
    done = subprocess.run([sys.executable, "-m", "lbdrop", "rates", str(tmp_path / "m.pt")], capture_output=True, text=True, check=True)  # fmt: skip
    assert "█" in done.stdout
    assert "\x1b" not in done.stdout
