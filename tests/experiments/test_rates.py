"""Every task and every contestant at a small size, and verdicts against hand arithmetic."""

import gzip
import io
import json
import math
import shutil
import struct
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

import lbdrop
from experiments.collaborative import samples
from experiments.rates import features, figure, images, likes, run, table, text, uci, verdicts
from experiments.rates.contestants import CONTESTANTS, GRID, Batches, Contestant, MaskPrior, chosen
from experiments.rates.tasks import SMALL, TASKS, Data, Task
from experiments.rates.tasks import chosen as chosen_tasks
from lbdrop import Bound, Objective
from lbdrop.cli import reproduce_rates
from lbdrop.dropout import learned_layers
from lbdrop.errors import DropoutError
from lbdrop.models.vgg import VGG
from lbdrop.recommend.prepared import load_prepared, prepare
from lbdrop.vision import cifar10

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of the published formats with few, generated examples."""
    made, random = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    parts = {"train_x": (90, 28, 28), "train_y": (90,), "test_x": (12, 28, 28), "test_y": (12,)}
    np.savez(made / "fashion-mnist.npz", **{  # pyright: ignore
        name: random.integers(0, 10 if name.endswith("y") else 256, shape, dtype=np.uint8) for name, shape in parts.items()
    })  # fmt: skip
    with tarfile.open(made / "uci.tar", "w") as archive:
        for name in uci.FOLDERS.values():
            order = random.permutation(40)
            files = {
                "data.txt": random.normal(size=(40, 4)), "index_features.txt": np.arange(3), "index_target.txt": [3],
                "index_train_0.txt": order[:36], "index_test_0.txt": order[36:],
            }  # fmt: skip
            for file, content in files.items():
                written = io.BytesIO()
                np.savetxt(written, content)
                entry = tarfile.TarInfo(f"UCI_Datasets/{name}/data/{file}")
                entry.size = written.tell()
                written.seek(0)
                archive.addfile(entry, written)
    likes_of(made)
    return made


def likes_of(folder: Path) -> None:
    """MovieLens-1M and Netflix, prepared, of 60 users with 9 likes each."""
    random, source = np.random.default_rng(0), folder / "official"
    source.mkdir()
    rows = [f"{user}::{1 + item}::5::{user}" for user in range(1, 61) for item in random.choice(20, 9, replace=False)]
    (source / "ratings.dat").write_text("\n".join(rows) + "\n")
    (source / "movies.dat").write_text("".join(f"{i}::Film {i} (1999)::Drama\n" for i in range(1, 21)))
    prepare("ml-1m", source, folder / "prepared", allow_partial=True, held_out_users=10)
    shutil.copytree(folder / "prepared" / "ml-1m", folder / "prepared" / "netflix")


def tiny_task() -> Task:
    """Two Gaussian clouds, 24 to train on; the whole path of a run in a few milliseconds."""

    def load(folder: Path, seed: int) -> Any:
        g = torch.Generator().manual_seed(seed)
        x, y = torch.randn(48, 5, generator=g), torch.arange(48) % 2
        x = x + y[:, None]
        return (x[:24], y[:24]), (x[24:36], y[24:36]), (x[36:], y[36:]), 1.0

    def network(data: Data, rate: float) -> nn.Module:
        return nn.Sequential(nn.Dropout(rate), nn.Linear(5, 6), nn.ReLU(), nn.Dropout(rate), nn.Linear(6, 2))

    return Task("tiny", "classification", load, network, epochs=2, batch=8, starts=True)


# --------------------------------------------------------------------------------------------------------------- tasks


@pytest.mark.parametrize("name", TASKS)
def test_every_task_loads_builds_and_takes_a_step(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "SIZES", (4, 4, 4))
    monkeypatch.setattr(samples, "SAMPLES", {"netflix-sample": samples.Sample(40, 10)})
    classes = torch.arange(40) % 10
    monkeypatch.setattr(
        features, "_features", lambda folder: (torch.rand(40, 8), classes, torch.rand(20, 8), classes[:20])
    )
    task = TASKS[name]
    data = task.data(folder, 0)
    model = CONTESTANTS["tuned-layer"].model(task, data)
    objective = CONTESTANTS["tuned-layer"].objective(
        model, replace(task, batch=4), data, 100, torch.Generator().manual_seed(0)
    )
    before = [p.clone() for p in model.parameters()]
    optimizer = torch.optim.Adam(lbdrop.parameter_groups(model, 0.01, lr=task.lr))
    for _ in range(2):
        loss = objective(task.losses, *(part[:4] for part in data.train))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert math.isfinite(float(loss.detach()))
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert len(learned_layers(model)) >= (1 if task.kind == "ranking" else 2)
    losses = task.losses(model, *(part[:4] for part in data.train))
    assert losses.shape == (4,)


@pytest.mark.parametrize("name", ["digits", "fashion-1000-mlp", "uci-yacht", "text"])
def test_parts_share_no_example_and_the_seed_decides(name: str, folder: Path) -> None:
    task = TASKS[name]
    data = task.data(folder, 0)
    again = task.data(folder, 0)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(data[:3], again[:3], strict=True))
    if name.startswith("digits"):
        assert [len(part[0]) for part in data[:3]] == [600, 200, 997]
        assert not torch.equal(data.train[0], task.data(folder, 1).train[0])
    if name == "uci-yacht":  # 36 rows to train on, a fifth of them validate
        assert [len(part[0]) for part in data[:3]] == [29, 7, 4]
        torch.testing.assert_close(data.train[0].mean(0), torch.zeros(3), atol=1e-5, rtol=0)
        torch.testing.assert_close(data.train[1].std(correction=0), torch.tensor(1.0))
    if name == "text":  # a target is the next input
        assert torch.equal(data.train[0][:, 1:], data.train[1][:, :-1])


def test_no_character_sees_those_after_it() -> None:
    model = text.Characters(20, 0.1).eval()
    x = torch.randint(0, 20, (2, text.CONTEXT))
    later = x.clone()
    later[:, 30:] = 0
    torch.testing.assert_close(model(x)[:, :30], model(later)[:, :30], rtol=1e-4, atol=1e-5)


def test_official_files_read_like_the_packed_ones(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "fashion-mnist").mkdir()
    with np.load(folder / "fashion-mnist.npz") as packed:
        for name, file in images.IDX.items():
            array = packed[name]
            head = struct.pack(f">I{array.ndim}I", 0x0800 | array.ndim, *array.shape)
            (tmp_path / "fashion-mnist" / file).write_bytes(gzip.compress(head + array.tobytes()))
    ours, theirs = (images.fashion(30, each, 0) for each in (tmp_path, folder))
    assert all(torch.equal(a, b) for x, y in zip(ours[:3], theirs[:3], strict=True) for a, b in zip(x, y, strict=True))


@pytest.mark.parametrize("name", ["fashion-1000-mlp", "uci-yacht"])
def test_missing_data_say_where_to_get_them(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "PLACES", images.PLACES[:1])  # this machine may have Debian's package
    with pytest.raises(DropoutError, match="github.com"):
        TASKS[name].data(tmp_path, 0)


def test_regression_measures_are_in_the_datas_own_units() -> None:
    model = uci.Regressor(3, 4, 0.1)
    nn.init.constant_(model.log_variance, math.log(0.25))
    task = TASKS["uci-yacht"]
    found = task.of.measures(torch.zeros(1, 2, 1), torch.tensor([1.0, -1.0]), model, unit=10.0)
    assert found["rmse"] == pytest.approx(10.0)
    assert found["nll"] == pytest.approx(0.5 * (math.log(2 * math.pi * 25) + 4))
    x, y = torch.randn(6, 3), torch.randn(6)
    model.eval()
    deterministic = task.of.measures(model(x)[None].detach(), y, model, unit=1.0)["nll"]
    assert deterministic == pytest.approx(float(task.losses(model, x, y).mean().detach()), rel=1e-5)


def test_likes_are_split_by_the_protocol_and_known_ones_are_no_answer(folder: Path) -> None:
    (rows, wanted), *held = TASKS["ml-1m-paper"].data(folder, 0)[:3]
    assert torch.equal(wanted > 0, rows)
    assert (len(rows), likes.pieces(wanted)) == (40, pytest.approx(9.0))
    split = samples.split(load_prepared(folder / "prepared" / "ml-1m"), "ml-1m")
    for (x, y), part in zip(held, (split.validation, split.test), strict=True):
        assert np.array_equal(x.numpy(), part.fold_in.toarray() > 0)
        assert np.array_equal(y.numpy() > 0, part.held_out.toarray() > 0)
        assert torch.equal(y < 0, x)
        assert float(y.clamp(min=0).sum(1).mean()) == pytest.approx(1.0)


def test_likes_are_measured_by_hand() -> None:
    # Two users, two likes held out in all; what is known is neither counted nor ranked.
    y = torch.tensor([[-1.0, 1.0, 0.0, 0.0], [0.0, 0.0, -1.0, 1.0]])
    p = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.3, 0.1, 0.4, 0.2]])
    found = TASKS["ml-1m-paper"].of.measures(p.expand(3, 2, 4), y, nn.Identity(), 1.0)
    assert found["nll"] == pytest.approx(-(math.log(0.3) + math.log(0.2)) / 2)
    assert found["ndcg@100"] == pytest.approx((1 + 1 / math.log2(3)) / 2)


@pytest.mark.parametrize("name", ["ml-1m-paper", "ml-1m-dense"])
def test_a_users_bound_has_its_kl_in_training_alone(name: str, folder: Path) -> None:
    task = TASKS[name]
    data = task.data(folder, 0)
    torch.manual_seed(0)
    model, (x, y) = task.network(data, 0.5), (part[:5] for part in data.train)
    assert isinstance(model, likes.LikesVAE)
    loss = task.losses(model, x, y)
    with torch.no_grad():
        mean, log_variance = model.posterior(model.hidden(model.first(F.normalize(x.float())))).chunk(2, -1)
    posterior = torch.distributions.Normal(mean, (log_variance / 2).exp())
    weight = 0.2 if name == "ml-1m-paper" else 0.005 * 9
    model.dropout.p = 0.0
    _ = task.losses(model, x, y)
    expected = torch.distributions.kl_divergence(posterior, torch.distributions.Normal(torch.zeros_like(mean), 1.0))
    torch.testing.assert_close(model.kl, weight / 9 * expected.sum(-1))
    at_test = -(model.eval()(x).log_softmax(-1) * y).sum(-1)
    torch.testing.assert_close(task.losses(model, x, y), at_test)
    assert not torch.allclose(loss, at_test)


def test_the_dense_encoder_adds_up_all_layers_before() -> None:
    torch.manual_seed(0)
    dense, h = likes.Dense(4, 3), torch.randn(2, 4)
    first = dense.norms[0](F.silu(h))
    second = dense.norms[1](F.silu(dense.linear[0](first) + first))
    third = dense.norms[2](F.silu(dense.linear[1](second) + first + second))
    torch.testing.assert_close(dense(h), third)


def test_what_the_head_reads_is_what_vgg_makes_of_enlarged_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    official = cifar10.Images(
        torch.randint(0, 256, (20, 3, 32, 32), dtype=torch.uint8), torch.arange(20) % 10,
        torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8), torch.arange(4),
    )  # fmt: skip
    monkeypatch.setattr(cifar10, "load", lambda path, download: official)
    with pytest.raises(DropoutError, match="want .*vgg19-conv.npz"):
        features.load(tmp_path, 0)
    network = VGG(19, width=1, pool=2)
    names = [f"conv{block}_{i}" for block, n in enumerate((2, 2, 4, 4, 4), 1) for i in range(1, n + 1)]
    convolutions = [m for m in network.features if isinstance(m, nn.Conv2d)]
    parts = {"pre": network.pre, **dict(zip(names, convolutions, strict=True))}
    arrays = {
        f"{name}.{part}": getattr(m, part).detach().numpy() for name, m in parts.items() for part in ("weight", "bias")
    }
    np.savez(tmp_path / "vgg19-conv.npz", **arrays)  # pyright: ignore
    train, validation, test, _ = features.load(tmp_path, 0)
    assert [len(each[0]) for each in (train, validation, test)] == [18, 2, 4]
    enlarged = F.interpolate(official.test.float() / 255, (64, 64), mode="bilinear")
    torch.testing.assert_close(test[0], network.trunk(enlarged).detach(), rtol=1e-3, atol=1e-4)
    assert test[0].shape == (4, 2048)
    torch.testing.assert_close(torch.cat([train[1], validation[1]]).bincount(), torch.full((10,), 2))


def test_a_prior_is_shared_by_all_observations_of_an_example() -> None:
    task = TASKS["text"]
    model = CONTESTANTS["kl-layer"].model(task, task.data(Path(), 0))
    objective = CONTESTANTS["kl-layer"].objective(model, task, task.data(Path(), 0), 10, torch.Generator())
    assert isinstance(objective, Objective)
    assert isinstance(objective.rule, Bound)
    assert objective.rule.weight / objective.rule.examples == pytest.approx(1 / (text.SIZES[0] * text.CONTEXT))
    prior = CONTESTANTS["prior-layer"].objective(model, task, task.data(Path(), 0), 10, torch.Generator())
    assert isinstance(prior, Objective)
    assert isinstance(prior.rule, MaskPrior)
    assert prior.rule.weight == 1 / text.CONTEXT
    said = [run.settings(task, CONTESTANTS[name]).get("prior") for name in ("kl-layer", "concrete", "loss-layer")]
    assert said == [said[0], said[0], None]
    assert said[0] is not None
    assert "prior" not in run.settings(TASKS["digits"], CONTESTANTS["kl-layer"])


# --------------------------------------------------------------------------------------------------------- contestants


@pytest.mark.parametrize("name", CONTESTANTS)
def test_every_contestant_runs_and_gives_a_complete_record(name: str, folder: Path) -> None:
    contestant = CONTESTANTS[name]
    record = run.run(tiny_task(), contestant, 0, folder=folder, epochs=30)  # enough for rates that look first
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    for part in ("validation", "test"):
        assert set(record[part]) == {"deterministic", "masks"}
        assert set(record[part]["deterministic"]) == {"nll", "accuracy"}
    assert len(record["rates"]) == (0 if contestant.scheme is None else 2)
    moved = any(abs(layer["mean"] - contestant.rate) > 1e-4 for layer in record["rates"].values())
    assert moved == (not contestant.fixed)
    assert record["history"][-1]["epoch"] == 30
    assert record["examples"]["train"] == (36 if contestant.retrained else 24)
    assert record["provenance"]["versions"]["torch"]
    if contestant.scheme is None:
        assert record["test"]["deterministic"] == record["test"]["masks"]


def test_a_seed_has_the_same_weights_and_batches_for_every_contestant() -> None:
    task = tiny_task()
    data = task.data(Path(), 3)
    weights = []
    for name in ("none", "fixed-0.5", "concrete", "tuned-layer", "kl-unit"):
        torch.manual_seed(3)
        model = CONTESTANTS[name].model(task, data)
        weights.append(torch.cat([p.detach().flatten() for n, p in model.named_parameters() if "weight" in n]))
    assert all(torch.equal(weights[0], other) for other in weights[1:])


def test_rates_over_training_are_noted_at_no_more_than_twenty_points_beside_the_start() -> None:
    record = run.run(tiny_task(), CONTESTANTS["tuned-layer"], 0, epochs=45)
    epochs = [point["epoch"] for point in record["history"]]
    assert epochs[0] == 0
    assert epochs[-1] == 45
    assert len(epochs) <= run.POINTS + 1


def test_a_prior_on_masks_holds_rates_at_one_half() -> None:
    model = lbdrop.convert(nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.1), nn.Linear(50, 2)), verbose=False)
    objective = Objective(model, MaskPrior())
    optimizer = torch.optim.Adam(lbdrop.parameter_groups(model, 0.1, lr=1e-3))
    x, y = torch.randn(16, 3), torch.randint(0, 2, (16,))
    for _ in range(100):
        optimizer.zero_grad()
        objective(lambda m: F.cross_entropy(m(x), y, reduction="none")).backward()
        optimizer.step()
    assert learned_layers(model)["1"].p == pytest.approx(0.5, abs=0.03)


def test_starts_run_on_the_tasks_that_compare_them() -> None:
    everyone = {each.name for each in chosen("all", TASKS["digits"])}
    assert everyone == {name for name, each in CONTESTANTS.items() if not each.retrained}
    assert everyone - {each.name for each in chosen("all", TASKS["uci-yacht"])} == {
        "tuned-layer-0.05",
        "tuned-layer-0.3",
        "tuned-layer-0.7",
    }
    assert len(chosen("grid,tuned-model", TASKS["digits"])) == len(GRID) + 2
    with pytest.raises(DropoutError, match="contestant: want all, grid, retrained or among none.*got 'magic'"):
        chosen("magic", TASKS["digits"])
    assert [task.name for task in chosen_tasks("all-small")] == list(SMALL)


def test_batches_come_in_a_new_order_and_whole() -> None:
    examples = torch.arange(10.0)[:, None], torch.arange(10)
    batches = Batches(examples, 4, torch.Generator().manual_seed(0))
    first, second = list(batches), list(batches)
    assert [len(x) for x, _ in first] == [4, 4]
    assert not torch.equal(first[0][1], second[0][1])
    assert len(list(Batches(examples, 64, torch.Generator()))) == 1


# ------------------------------------------------------------------------------------------------------- table, resume


def test_verdicts_are_those_of_a_paired_t_test_done_by_hand() -> None:
    # Differences −1, −2, −3: mean −2, standard error 1/√3, t = −2√3 with 2 degrees of freedom, p = 1 − t/√(2 + t²) = .0742.
    found = verdicts.paired([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert found["p"] == pytest.approx(1 - math.sqrt(12 / 14))
    assert found["verdict"] == "level"
    assert found["difference"] == -2.0
    # −1, −1.1, −1.2: t = −1.1·√3/.1 = −19.05, p = .00274.
    found = verdicts.paired([1.0, 1.0, 1.0], [2.0, 2.1, 2.2])
    assert found["p"] == pytest.approx(1 - math.sqrt(363 / 365))
    assert found["verdict"] == "better"
    assert verdicts.paired([2.0, 2.1, 2.2], [1.0, 1.0, 1.0])["verdict"] == "worse"
    assert verdicts.paired([1.0, 1.0], [2.0, 2.1])["verdict"] == "too few seeds"
    assert verdicts.paired([1.0, 1.0, 1.0], [1.0, 1.0, 1.0])["verdict"] == "level"


def made_record(contestant: Contestant, seed: int, validation: float, test: float, rate: float = 0.2) -> dict[str, Any]:
    def both(nll: float) -> dict[str, Any]:
        return {how: {"nll": nll, "accuracy": 0.5} for how in ("deterministic", "masks")}

    layers = {} if contestant.scheme is None else {"0": {"mean": rate, "min": rate, "max": rate}}
    return {
        "task": "tiny", "contestant": contestant.name, "label": contestant.label, "seed": seed,
        "settings": run.settings(tiny_task(), contestant), "validation": both(validation), "test": both(test),
        "rates": layers, "history": [{"epoch": e, "rates": {k: v["mean"] for k, v in layers.items()}} for e in (0, 1)],
        "seconds": {"train": 3.0, "cpu": 4.0 if contestant.rule == "self-tuning" else 2.0},
    }  # fmt: skip


def made_records() -> list[dict[str, Any]]:
    """Validation likes .3 on seed 0 and .5 on the others; the test likes .1, which nobody can know."""
    found = []
    for seed in range(3):
        for name in table.FIXED:
            validation = 1.0 - 0.5 * (name == ("fixed-0.3" if seed == 0 else "fixed-0.5"))
            found.append(made_record(CONTESTANTS[name], seed, validation, 0.3 if name == "fixed-0.1" else 0.5))
        found.append(made_record(CONTESTANTS["tuned-layer"], seed, 0.4, 0.4 + 0.01 * seed))
        found.append(made_record(CONTESTANTS["loss-layer"], seed, 0.4, 0.9 + 0.01 * seed, rate=0.01))
    return found


def test_each_seed_is_one_grid_search_and_the_oracle_looks_at_the_test() -> None:
    found = table.summary(made_records())
    assert found["chosen"]["deterministic"]["rates"] == [0.3, 0.5, 0.5]
    assert found["chosen"]["masks"]["nll"] == pytest.approx(0.5)
    assert found["oracle"]["deterministic"]["contestant"] == "fixed-0.1"
    tuned, loss = (found["contestants"][name] for name in ("tuned-layer", "loss-layer"))
    assert tuned["against_grid"]["deterministic"]["verdict"] == "better"
    assert tuned["cost_in_fixed_runs"] == 2.0
    assert not tuned["collapsed"]
    assert loss["against_grid"]["masks"]["verdict"] == "worse"
    assert loss["collapsed"]
    assert found["cost"]["grid_cpu_seconds"] == 14.0


def test_what_the_grid_chose_is_trained_again_and_self_tuning_is_compared_with_it() -> None:
    records = made_records()
    assert [who.name for who in table.retraining(records, 0)] == ["fixed-0.3-retrained"]
    assert table.retraining([r for r in records if r["contestant"] != "fixed-0.7"], 0) == []
    assert table.summary(records)["retrained"] == {}
    for seed in range(3):
        (who,) = table.retraining(records, seed)
        records.append(made_record(who, seed, 0.0, 0.35 + 0.001 * seed))
    found = table.summary(records)
    assert found["retrained"]["masks"]["nll"] == pytest.approx(0.351)
    assert found["retrained"]["masks"]["tuned-layer"]["verdict"] == "worse"  # .40 .41 .42
    assert found["contestants"]["tuned-layer"]["against_grid"]["masks"]["verdict"] == "better"
    assert not [name for name in found["contestants"] if name.endswith("retrained")]


def test_a_grid_that_is_not_complete_gives_no_verdict() -> None:
    records = [record for record in made_records() if record["contestant"] != "fixed-0.7"]
    found = table.summary(records)
    assert found["seeds"] == []
    assert "against_grid" not in found["contestants"]["tuned-layer"]


def test_starts_are_compared_layer_by_layer() -> None:
    rates = {"tuned-layer-0.05": 0.1, "tuned-layer-0.3": 0.2, "tuned-layer-0.7": 0.35}
    records = [made_record(CONTESTANTS[name], 0, 1.0, 1.0, rate) for name, rate in rates.items()]
    starts = table.summary(records)["starts"]
    assert starts["apart_per_layer"]["0"] == pytest.approx(0.25)
    assert starts["apart_mean_rate"] == pytest.approx(0.25)


def test_an_older_record_of_the_same_run_is_replaced_and_other_settings_run_again(tmp_path: Path) -> None:
    task, path, who = tiny_task(), tmp_path / "tiny.json", CONTESTANTS["none"]
    for nll in (1.0, 2.0):
        run.write(path, task, made_record(who, 0, nll, nll))
    run.write(path, task, made_record(CONTESTANTS["fixed-0.3"], 0, 1.0, 1.0))
    records = run.read(path)
    assert [record["test"]["masks"]["nll"] for record in records] == [1.0, 2.0]
    assert run.kept(records, task, who, 0)
    assert not run.kept(records, task, who, 1)
    assert not run.kept(records, replace(task, epochs=9), who, 0)
    path.write_text("[1]")
    with pytest.raises(DropoutError, match="want the records of a task"):
        run.read(path)


@pytest.fixture
def app() -> Any:
    import typer

    made = typer.Typer()
    made.command()(reproduce_rates.rates)
    return made


def test_command_runs_writes_and_skips_what_is_there(app: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "digits", replace(tiny_task(), name="digits"))
    call = ["--task", "digits", "--seeds", "1", "--contestant", "grid,tuned-layer,retrained", "--out", str(tmp_path)]
    call += ["--workers", "1"]  # here, where the task is the tiny one
    first = CliRunner().invoke(app, call)
    assert first.exit_code == 0, first.output
    assert "digits, self-tuning, per layer, seed 0: test nll" in first.output
    assert (tmp_path / "rates.png").read_bytes().startswith(PNG_SIGNATURE)
    assert ", retrained, seed 0: test nll" in first.output
    assert "| self-tuning, per layer | 1 |" in (tmp_path / "table.md").read_text()
    assert json.loads((tmp_path / "summary.json").read_text())["digits"]["seeds"] == [0]
    before = (tmp_path / "digits.json").read_text()

    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a run that is there was run again")

    monkeypatch.setattr(run, "run", never)
    assert CliRunner().invoke(app, call).exit_code == 0
    assert (tmp_path / "digits.json").read_text() == before


def test_command_ends_in_one_line_where_data_or_names_are_missing(
    app: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "PLACES", images.PLACES[:1])
    for call, words in (
        (["--task", "fashion-1000-mlp"], "Fashion-MNIST: want"),
        (["--task", "nothing"], "task: want all-small or among digits"),
    ):
        result = CliRunner().invoke(app, [*call, "--data", str(tmp_path / "none"), "--out", str(tmp_path)])
        assert result.exit_code == 1
        assert result.output.startswith(words)
        assert len(result.output.strip().splitlines()) == 1


def test_a_figure_needs_self_tuned_rates(tmp_path: Path) -> None:
    assert figure.save({"tiny": [made_record(CONTESTANTS["none"], 0, 1.0, 1.0)]}, tmp_path / "rates.png") is None
