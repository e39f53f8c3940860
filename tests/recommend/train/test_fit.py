"""Training: reproducible, saved, stopped and resumed."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lbdrop.errors import DropoutError
from lbdrop.recommend.data.rows import Rows
from lbdrop.recommend.data.splits import HeldOut
from lbdrop.recommend.model.settings import Settings, method
from lbdrop.recommend.model.vae import VAE, UserLosses
from lbdrop.recommend.train import fit as module
from lbdrop.recommend.train import loop
from lbdrop.recommend.train.evaluate import evaluate
from lbdrop.recommend.train.fit import History, Interrupted, fit

ITEMS, GROUPS = 24, 4
SMALL: dict[str, Any] = {"hidden": 12, "latent": 6, "batch": 16, "epochs": 4, "anneal_steps": 40}


def likes(users: int, seed: int) -> np.ndarray:
    """Each user likes most items of one of four groups, and few others."""
    random = np.random.default_rng(seed)
    own = (np.arange(users)[:, None] % GROUPS) == (np.arange(ITEMS) % GROUPS)
    return random.random((users, ITEMS)) < np.where(own, 0.8, 0.03)


@pytest.fixture
def train() -> csr_array:
    return csr_array(likes(70, 0).astype(np.float32))


@pytest.fixture
def validation() -> HeldOut:
    rows, hidden = likes(30, 1), np.random.default_rng(2).random((30, ITEMS)) < 0.3
    fold_in, held_out = rows & ~hidden, rows & hidden
    return HeldOut(csr_array(fold_in.astype(np.float32)), csr_array(held_out.astype(np.float32)), pl.Series(range(30)))


def new(settings: Settings, users: int = 70) -> VAE:
    torch.manual_seed(5)
    return VAE(ITEMS, settings, users=users)


def run(
    settings: Settings, train: Any, validation: Any, model: VAE | None = None, **options: Any
) -> tuple[VAE, History]:
    model = model or new(settings)
    return model, fit(model, train, validation, settings, device="cpu", progress=False, **options)


def weights(model: VAE) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].equal(b[name]), name


def without_time(history: History) -> list[dict[str, Any]]:
    return [{k: v for k, v in epoch.items() if "seconds" not in k} for epoch in history.epochs]


def test_training_finds_the_groups_nearly_as_well_as_the_truth(train: csr_array, validation: HeldOut) -> None:
    def recall(scores: Any) -> float:
        return evaluate(scores, validation, recall=(6,), ndcg=(6,), device="cpu").mean["recall@6"]

    model = new(method("vae-drop", **SMALL | {"epochs": 40, "lr": 0.01}))
    scores = partial(model.scores, samples=0)
    own = torch.arange(30)[:, None].remainder(GROUPS) == torch.arange(ITEMS).remainder(GROUPS)
    known, untrained = recall(lambda batch: own[batch.number].float()), recall(scores)
    _, history = run(model.settings, train, validation, model=model)
    assert untrained < 0.5 < known
    assert recall(scores) > 0.95 * known
    assert history.epochs[-1]["loss"] < 0.9 * history.epochs[0]["loss"]


@pytest.mark.parametrize("name", ["vae-drop", "sivae-lbd", "recvae", "cdae"])
def test_same_seed_gives_the_same_run_bit_for_bit(name: str, train: csr_array, validation: HeldOut) -> None:
    settings = method(name, **SMALL | {"epochs": 2})
    (first, one), (second, two) = (run(settings, train, validation, seed=3) for _ in range(2))
    assert_same(weights(first), weights(second))
    assert without_time(one) == without_time(two)
    other, _ = run(settings, train, validation, seed=4)
    assert any(not a.equal(b) for a, b in zip(weights(first).values(), weights(other).values(), strict=True))


class PullThePlug(Exception):
    pass


@pytest.mark.parametrize(
    ("name", "stop"),
    [("vae-drop", PullThePlug), ("sivae-lbd", KeyboardInterrupt), ("recvae", KeyboardInterrupt)],
)
def test_resumed_run_equals_an_uninterrupted_one(
    name: str, stop: type[BaseException], train: csr_array, validation: HeldOut, tmp_path: Path, monkeypatch: Any
) -> None:
    settings = method(name, **SMALL, final_lr=0.1)
    whole, expected = run(settings, train, validation)
    epochs, calls = loop.Loop.epoch, []

    def interrupted(self: Any, number: int, advance: Any) -> Any:
        calls.append(number)
        if number == 3 and len(calls) == 3:
            raise stop
        return epochs(self, number, advance)

    monkeypatch.setattr(loop.Loop, "epoch", interrupted)
    with pytest.raises(Interrupted if stop is KeyboardInterrupt else stop) as raised:
        run(settings, train, validation, checkpoints=tmp_path)
    if stop is KeyboardInterrupt:
        assert str(raised.value) == f"stopped in epoch 3; {tmp_path} holds epoch 2: the same call goes on from there"
    resumed, history = run(settings, train, validation, checkpoints=tmp_path)
    assert calls == [1, 2, 3, 3, 4]
    assert_same(weights(resumed), weights(whole))
    assert without_time(history) == without_time(expected)
    assert history.best == expected.best
    again, same = run(settings, train, validation, checkpoints=tmp_path)  # nothing is left to do
    assert len(calls) == 5
    assert same == history
    assert_same(weights(again), weights(whole))


def test_more_epochs_continue_a_finished_run(train: csr_array, tmp_path: Path) -> None:
    short, long = (method("vae-drop", **SMALL | {"epochs": n}) for n in (2, 4))
    run(short, train, None, checkpoints=tmp_path)
    longer, history = run(long, train, None, checkpoints=tmp_path)
    assert len(history.epochs) == 4
    assert_same(weights(longer), weights(run(long, train, None)[0]))


def test_checkpoint_folder_holds_one_state_and_no_pickle(train: csr_array, validation: HeldOut, tmp_path: Path) -> None:
    (tmp_path / "epoch-00001.part").mkdir()  # left by a power cut
    _, history = run(method("vae-drop", **SMALL), train, validation, checkpoints=tmp_path, checkpoint_every=2)
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert files == [
        f"epoch-00004/best-{history.best:05d}.safetensors", "epoch-00004/record.json", "epoch-00004/state.safetensors"
    ]  # fmt: skip
    assert json.loads((tmp_path / "epoch-00004/record.json").read_text())["epochs"] == history.epochs


def test_checkpoint_folder_of_another_run_is_an_error(train: csr_array, tmp_path: Path) -> None:
    settings = method("vae-drop", **SMALL | {"epochs": 1})
    run(settings, train, None, checkpoints=tmp_path)
    with pytest.raises(DropoutError, match="holds another run: seed was 0 and is now 1; choose another folder"):
        run(settings, train, None, checkpoints=tmp_path, seed=1)
    with pytest.raises(DropoutError, match="lr was 0.001 and is now 0.5"):
        run(replace(settings, lr=0.5), train, None, checkpoints=tmp_path)
    with pytest.raises(DropoutError, match="entries was"):
        run(settings, train[:50], None, checkpoints=tmp_path)


def scripted(monkeypatch: pytest.MonkeyPatch, values: list[float]) -> None:
    """Validation gives these measures, one after the other."""
    given = iter(values)
    monkeypatch.setattr(module, "_validate", lambda *_: ({"ndcg@100": next(given)}, 0.0))


def test_weights_of_the_best_epoch_are_restored(train: csr_array, validation: HeldOut, monkeypatch: Any) -> None:
    settings = method("vae-drop", **SMALL | {"epochs": 5, "beta_cap": 1.0})
    scripted(monkeypatch, [0.1, 0.3, 0.2, 0.3, 0.1])
    model, history = run(settings, train, validation)
    assert history.best == 2
    assert history.best_epoch is not None
    assert history.best_epoch["beta"] == pytest.approx(9 / 40)  # 5 steps an epoch, the last of them is number 9
    assert_same(weights(model), weights(run(replace(settings, epochs=2), train, None)[0]))


def test_patience_stops_training(train: csr_array, validation: HeldOut, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = method("vae-drop", **SMALL | {"epochs": 20})
    scripted(monkeypatch, [0.1, 0.3, 0.2, 0.25, 0.4, 0.1, 0.1, 0.1, 9.9])
    _, history = run(settings, train, validation, patience=3)
    assert (len(history.epochs), history.best, history.stopped) == (8, 5, True)
    scripted(monkeypatch, [0.1, 0.3, 0.2, 0.2, 0.2])
    _, history = run(settings, train, validation, patience=2, validate_every=2)
    assert (len(history.epochs), history.best, history.stopped) == (8, 4, True)
    assert [epoch["validation"] is None for epoch in history.epochs] == [True, False] * 4


def test_beta_rises_with_the_steps_up_to_its_cap(train: csr_array, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    losses = VAE.losses

    def listening(self: VAE, batch: Any, beta: Any, generator: Any = None) -> UserLosses:
        seen.append(float(beta))
        return losses(self, batch, beta, generator)

    monkeypatch.setattr(VAE, "losses", listening)
    run(method("vae-drop", **SMALL | {"beta_cap": 0.3, "epochs": 3}), train, None)
    assert seen == pytest.approx([min(0.3, step / 40) for step in range(15)])


@pytest.mark.parametrize("on_the_device", [False, True])
def test_learning_rates_fall_along_a_cosine(on_the_device: bool, train: csr_array) -> None:
    settings = method("sivae-lbd-one", **SMALL | {"epochs": 5, "lr": 0.01, "rate_lr": 0.1, "final_lr": 0.2})
    taken = loop.Loop(new(settings), Rows.from_csr(train), settings, loop.launch("cpu"), recorded=False)
    if on_the_device:  # as where steps are recorded: numbers are written in place
        for group in taken.optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"])
    kept = [group["lr"] for group in taken.optimizer.param_groups]
    seen = []
    for number in range(1, 7):  # one more than were asked for: it stays at the end
        taken.epoch(number)
        seen.append([float(group["lr"]) for group in taken.optimizer.param_groups])
    shares = [1, 0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2, 0.6, 0.2 + 0.8 * (1 - math.sqrt(0.5)) / 2, 0.2, 0.2]
    assert np.array(seen) == pytest.approx(np.outer(shares, [0.01, 0.1]))
    if on_the_device:
        assert all(group["lr"] is old for group, old in zip(taken.optimizer.param_groups, kept, strict=True))
    flat = replace(settings, final_lr=1.0)
    assert [flat.lr_share(number) for number in (1, 3, 5)] == [1.0, 1.0, 1.0]
    assert replace(settings, epochs=1).lr_share(1) == 1.0


def test_encoder_and_decoder_train_in_turn(train: csr_array, monkeypatch: pytest.MonkeyPatch) -> None:
    model = new(method("recvae", **SMALL | {"epochs": 1}))
    changed: list[tuple[bool, ...]] = []
    passes = loop.Loop._pass

    def watched(self: Any, *arguments: Any) -> Any:
        before, dropping = weights(self.model), self.model.dropping
        result = passes(self, *arguments)
        after = weights(self.model)
        changed.append(
            (
                *(
                    any(not before[n].equal(after[n]) for n in after if n.startswith(part))
                    for part in ("encoder", "decoder")
                ),
                dropping,
            )
        )
        return result

    monkeypatch.setattr(loop.Loop, "_pass", watched)
    run(model.settings, train, None, model=model)
    assert changed == [(True, False, True)] * 3 + [(False, True, False)]
    assert all(p.requires_grad for p in model.encoder.parameters())


class LooksBack(TorchDispatchMode):
    """Raises where the host would have to wait for the device to know a value or a shape."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal", "is_nonzero")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        without_size = name == "repeat_interleave" and not (kwargs or {}).get("output_size")
        by_mask = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        assert name not in self.WAITS, name
        assert not without_size, name
        assert not by_mask, name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["vae-drop", "sivae-lbd", "recvae", "vae-vamp-drop", "dae"])
def test_steps_do_not_wait_for_the_device(name: str, train: csr_array, validation: HeldOut) -> None:
    settings = method(name, **SMALL)
    model = new(settings)
    steps = loop.Loop(model, Rows.from_csr(train), settings, loop.launch("cpu"))
    steps.optimizer = torch.optim.SGD(
        model.parameters(), lr=1e-3
    )  # Adam's CPU kernel reads its step; the GPU's does not
    with LooksBack():
        steps._pass("both", *steps._generators(1), lambda share: None)
    assert steps.step == 5


def test_user_vectors_are_trained(train: csr_array) -> None:
    model = new(method("cdae", **SMALL | {"epochs": 1}))
    run(model.settings, train, None, model=model)
    assert model.encoder.user is not None
    assert model.encoder.user.abs().sum(1).gt(0).all()


def test_wrong_input_is_an_error_before_training(train: csr_array, validation: HeldOut) -> None:
    settings = method("vae-drop", **SMALL)
    narrow = validation._replace(fold_in=validation.fold_in[:, :7], held_out=validation.held_out[:, :7])
    for data, words in [
        ((train[:, :5], None), "want the model's 24 items, got 5 columns"),
        ((csr_array((3, ITEMS)), None), "want users with items, got 3 users and 0 interactions"),
        ((train, narrow), "validation: want the model's 24 items, got 7"),
    ]:
        with pytest.raises(DropoutError, match=words):
            run(settings, *data)
    with pytest.raises(DropoutError, match="want at least 1, got 0"):
        run(settings, train, None, validate_every=0)


def test_nan_loss_stops_training_with_advice(train: csr_array) -> None:
    model = new(method("vae-drop", **SMALL))
    with torch.no_grad():
        model.decoder.out.bias[0] = math.nan
    with pytest.raises(
        DropoutError, match=r"loss is nan .*: step 1 of epoch 1; not finite before it: decoder.out.bias. No parameter"
    ):
        run(model.settings, train, None, model=model)


def test_ctrl_c_without_a_folder_says_how_to_save_states(train: csr_array, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop.Loop, "epoch", interrupted)
    with pytest.raises(Interrupted, match="stopped in epoch 1; nothing was saved: pass checkpoints=<folder>"):
        run(method("vae-drop", **SMALL), train, None)


def test_balanced_rates_follow_validation_users_and_freeze(train: csr_array, validation: HeldOut) -> None:
    changes = SMALL | {"epochs": 20, "lr": 0.01, "mask_kl": 0.0}
    model = new(method("sivae-lbd-one", rates="balanced", estimator=None, **changes))
    run(model.settings, train, validation, model=model)
    assert not model.masks.logit.requires_grad  # frozen after two fifths
    assert float(model.masks.logit.detach()) != pytest.approx(float(new(model.settings).masks.logit.detach()))
    with pytest.raises(DropoutError, match="want validation users for 'balanced'"):
        run(model.settings, train, None)
    with pytest.raises(DropoutError, match="want rates='bound', whose runs can be resumed"):
        run(model.settings, train, validation, checkpoints=Path("never"))
