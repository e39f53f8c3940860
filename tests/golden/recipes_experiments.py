"""Recipes of the experiments: each at its smallest size, on generated data."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .records import Numbers

__all__ = ["RECIPES"]

UNTIMED = ("seconds", "provenance", "settings", "peak_bytes")


def numbers(record: Mapping[str, Any], prefix: str = "") -> Numbers:
    """The numbers of a JSON-like record, but for how long it took and where; a list of numbers stays one list."""
    found: Numbers = {}

    def add(key: str, value: Any) -> None:
        if isinstance(value, bool | str) or value is None or key.rsplit(".", 1)[-1] in UNTIMED:
            return
        if isinstance(value, int | float):
            found.setdefault(key, []).append(float(value))
        elif isinstance(value, Mapping):
            for name, each in value.items():
                add(f"{key}.{name}" if key else str(name), each)
        elif isinstance(value, Sequence):
            for each in value:
                add(key, each)

    add(prefix, record)
    return found


def parts(record: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: record[name] for name in names}


# ---------------------------------------------------------------------------------------------------- toy, demo, rates


def toy() -> Numbers:
    from experiments.toy import recipes

    settings = recipes.Settings(
        draws=4, grid=3, examples=60, trace_draws=3, trace_steps=4, networks=2, networks_grid=2, networks_draws=3
    )
    return numbers(parts(recipes.run(settings), "network", "exact", "surfaces", "trace"))


def demo() -> Numbers:
    from experiments.demo import run
    from experiments.demo.record import CONTESTANTS

    settings = replace(
        run.Settings.quick(), seeds=1, epochs=2, hidden=8, train=60, validation=40, strengths=(0.1,), masks=3
    )
    data = run.load(settings)
    found: Numbers = {}
    for contestant in CONTESTANTS.values():
        network = run.train(contestant, 0.1, 0, data.train, settings)
        p = run.predictive(network, contestant, data.test.x[:200], settings, seed=0)
        found |= numbers(run.measure(p.mean, data.test.y[:200]), contestant.name)
        found |= numbers(run.rates(network, contestant), f"{contestant.name}.rates")
        found[f"{contestant.name}.mean"] = p.mean[:2].flatten().tolist()
    return found


def rates() -> Numbers:
    """Two Gaussian clouds in place of a task's data; every kind of rule."""
    from torch import nn

    from experiments.rates import run
    from experiments.rates.record import CONTESTANTS
    from experiments.rates.tasks import Data, Task

    def load(folder: Path, seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        x, y = torch.randn(48, 5, generator=generator), torch.arange(48) % 2
        x = x + 0.5 * y[:, None]
        return (x[:24], y[:24]), (x[24:36], y[24:36]), (x[36:], y[36:]), 1.0

    def network(data: Data, rate: float) -> nn.Module:
        return nn.Sequential(nn.Dropout(rate), nn.Linear(5, 6), nn.ReLU(), nn.Dropout(rate), nn.Linear(6, 2))

    task = Task("tiny", "classification", load, network, epochs=10, batch=8)
    found: Numbers = {}
    names = (
        "fixed-0.3",
        "concrete",
        "kl-layer",
        "prior-unit",
        "one-step-layer",
        "tuned-layer",
        "balanced-layer",
        "balanced-unit",
    )
    for name in names:
        record = run.run(task, CONTESTANTS[name], 0)
        found |= numbers(parts(record, "validation", "test", "rates", "history"), name)
    return found


# -------------------------------------------------------------------------------------------------------------- images


def cifar10() -> Numbers:
    from experiments.cifar10 import recipes
    from experiments.vision.cifar10 import Images

    generator = torch.Generator().manual_seed(0)
    colours = torch.randint(0, 256, (10, 3, 1, 1), generator=generator)

    def some(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(count) % 10
        noise = torch.randint(-40, 40, (count, 3, 32, 32), generator=generator)
        return (colours[labels] + noise).clamp(0, 255).to(torch.uint8), labels

    images = Images(*some(40), *some(20))
    settings = recipes.Settings(
        depth=11, width=16, pool=1, size=32, batch=10, epochs=2, validation=20, samples=3, look_every=1, lr=1e-3
    )
    found: Numbers = {}
    for name in ("lbd-unit", "lbd-tuned-layer", "concrete"):
        record = recipes.run(replace(settings, method=name), images, device="cpu", progress=False)
        measures = {
            part: {key: record[part][key] for key in ("nll", "brier", "accuracy")} for part in ("validation", "test")
        }
        history = [{key: value for key, value in epoch.items() if key == "loss"} for epoch in record["history"]]
        means = {layer: values["mean"] for layer, values in record["rates"].items()}
        found |= numbers({**measures, "history": history, "rates": means}, name)
    return found


def camvid() -> Numbers:
    from experiments.camvid import recipes
    from experiments.networks.tiramisu import Plan
    from experiments.vision.camvid import VOID, CamVid, Scenes

    def scenes(count: int, seed: int) -> Scenes:
        """Three classes above each other, each of a colour, with noise and a void corner."""
        generator = torch.Generator().manual_seed(seed)
        labels = torch.zeros(count, 36, 44, dtype=torch.uint8)
        labels[:, 12:] = 3
        labels[:, 24:] = 8
        colours = torch.tensor([[200, 220, 250], [90, 90, 90], [160, 30, 30]])[(labels // 4).long()]
        noise = torch.randint(-30, 30, (count, 36, 44, 3), generator=generator)
        images = (colours + noise).clamp(0, 255).to(torch.uint8).permute(0, 3, 1, 2).contiguous()
        labels[:, :6, :6] = VOID
        return Scenes(images, labels, tuple(f"{seed}-{i}" for i in range(count)))

    data = CamVid(scenes(4, 0), scenes(2, 1), scenes(4, 2))
    settings = recipes.Settings(
        plan=Plan((1, 1, 1, 1, 1), 2, 4), crop=32, rounds=(recipes.Round(1, batch=2),), epochs=1, batch=2, samples=2,
        crop_scale=(1.0, 1.25), crop_lr=1e-2, rate_lr=0.1,
    )  # fmt: skip
    start = recipes.common_start(settings, data, progress=False)
    found: Numbers = {"start.losses": [epoch["loss"] for epoch in start.history]}
    for name in ("lbd", "gaussian"):
        (record, *_), _ = recipes.run(replace(settings, method=name), data, start, progress=False)
        measures = {
            part: {key: record[part][key] for key in ("nll", "brier", "accuracy")} for part in ("validation", "test")
        }
        history = [epoch["loss"] for epoch in record["history"]]
        found |= numbers({**measures, "losses": history, "rates": record["rates"]}, name)
    return found


# ------------------------------------------------------------------------------------------------------- collaborative


def collaborative() -> Numbers:
    from experiments.collaborative import recipes
    from experiments.collaborative.data.prepare import prepare
    from lbdrop.recommend.data.prepared import load_prepared

    found: Numbers = {}
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "ml-1m", Path(folder) / "prepared"
        source.mkdir()
        random, lines = np.random.default_rng(0), []
        for user in range(1, 61):
            taste = 1 + 20 * (user % 2) + np.arange(20)
            lines += [f"{user}::{item}::5::{user}" for item in random.choice(taste, 10, replace=False)]
        (source / "ratings.dat").write_text("\n".join(lines) + "\n")
        (source / "movies.dat").write_text("".join(f"{item}::Film {item} (1999)::Drama\n" for item in range(1, 42)))
        prepare("ml-1m", source, out, allow_partial=True, held_out_users=12)
        split = load_prepared(out / "ml-1m").split()
        small: dict[str, Any] = {"epochs": 2, "batch": 20, "hidden": 8, "latent": 4, "samples": 3}
        for name in ("sivae-lbd", "sivae-gaussian", "ease"):
            changes = {} if name in recipes.RIVALS else small
            record = recipes.run("ml-1m", name, 0, split, changes=changes, progress=False)
            parts = {part: record[part]["mean"] for part in ("validation", "test")}
            wanted = ("loss", "kl", "beta", "keep")
            history = [{key: epoch[key] for key in wanted} for epoch in record["history"]]
            found |= numbers({**parts, "history": history}, name)
    return found


RECIPES: dict[str, Callable[[], Numbers]] = {
    "experiment-toy": toy,
    "experiment-demo": demo,
    "experiment-rates": rates,
    "experiment-cifar10": cifar10,
    "experiment-camvid": camvid,
    "experiment-collaborative": collaborative,
}
