"""Small stand-ins for what the pages' commands take as given: files of the published formats, and schedules of seconds.

The commands themselves stay as they are written. Schedules are changed by a ``patch``: pytest's ``monkeypatch.setattr`` in this
process, the plain ``setattr`` in one that ends with its command.
"""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

Patch = Callable[[Any, str, Any], None]

CHANNELS = (4, 4, 8, 8, 8)
"""Of VGG19's five blocks, whose depth is kept."""
TRAIN, TEST = 60, 30
"""Images of CIFAR-10."""
SCENES = {"train": 6, "val": 2, "test": 5}
USERS, ITEMS, HELD_OUT = 60, 40, 12
"""Of the data sets of ratings; every user likes ten items of one half of them."""


# ---------------------------------------------------------------------------------------------------------------- files


def write_shop(folder: Path) -> None:
    """The files of likes that the recommender's pages begin with."""
    import polars as pl

    from lbdrop.recommend.data.shop import generate_shop

    shop = generate_shop(users=220, items=24, groups=2)
    likes = shop.interactions
    stars = likes.with_columns(weight=pl.lit(5), timestamp=pl.int_range(pl.len()).shuffle(seed=0))
    newcomers = likes.with_columns(user_id=likes["user_id"] + 1_000)
    for name, table in {"likes": likes, "train": likes, "ratings": stars, "newcomers": newcomers}.items():
        table.write_csv(folder / f"{name}.csv")
    for name, table in {"likes": likes, "histories": newcomers}.items():
        table.write_parquet(folder / f"{name}.parquet")
    shop.items.write_csv(folder / "items.csv")
    (folder / "events").mkdir()
    for part in range(2):
        stars.filter(pl.col("user_id") % 2 == part).write_parquet(folder / "events" / f"{part}.parquet")


def write_data_sets(folder: Path) -> None:
    """CIFAR-10 with VGG19's weights and foreign images, CamVid, Netflix and MovieLens-1M, under the names on the pages."""
    random = np.random.default_rng(0)
    _write_cifar10(folder / "data" / "cifar10", random)
    np.savez(folder / "vgg19-conv.npz", **_convolutions(random))
    np.savez(folder / "foreign32.npz", images=random.integers(0, 256, (12, 3, 32, 32), dtype=np.uint8))
    _write_camvid(folder / "data" / "camvid", random)
    _write_ratings(folder, random)


def _write_cifar10(folder: Path, random: np.random.Generator) -> None:
    from experiments.vision.cifar10 import FILES

    folder.mkdir(parents=True)
    for file in FILES:
        count = TEST if file == "test_batch" else TRAIN // 5
        labels = np.arange(count, dtype=np.uint8)[:, None] % 10
        pixels = random.integers(0, 200, (count, 3072)) + 5 * labels
        (folder / f"{file}.bin").write_bytes(np.concatenate([labels, pixels], 1).astype(np.uint8).tobytes())


def _convolutions(random: np.random.Generator) -> Any:
    from experiments.networks.vgg import BLOCKS

    found, before = {"pre.weight": np.eye(3)[:, :, None, None], "pre.bias": np.zeros(3)}, 3
    for block, (count, channels) in enumerate(zip(BLOCKS[19], CHANNELS, strict=True), start=1):
        for i in range(1, count + 1):
            found[f"conv{block}_{i}.weight"] = random.normal(size=(channels, before, 3, 3)) / (2 * before) ** 0.5
            found[f"conv{block}_{i}.bias"] = np.zeros(channels)
            before = channels
    return {name: value.astype(np.float16) for name, value in found.items()}


def _write_camvid(folder: Path, random: np.random.Generator) -> None:
    from PIL import Image

    labels = np.zeros((36, 44), np.uint8)
    labels[12:], labels[24:], labels[:6, :6] = 3, 8, 11
    for split, count in SCENES.items():
        lines = []
        for number in range(count):
            image = 20 * labels[:, :, None] + random.integers(0, 30, (36, 44, 3))
            for kind, pixels in ((split, image.astype(np.uint8)), (f"{split}annot", labels)):
                (folder / kind).mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(folder / kind / f"{number}.png")
            lines.append(f"/SegNet/CamVid/{split}/{number}.png /SegNet/CamVid/{split}annot/{number}.png\n")
        (folder / f"{split}.txt").write_text("".join(lines))


def _write_ratings(folder: Path, random: np.random.Generator) -> None:
    import tarfile
    import zipfile

    half = ITEMS // 2
    likes = [
        (user, 1 + half * (user % 2) + int(item))
        for user in range(1, USERS + 1)
        for item in random.choice(half, 10, replace=False)
    ]
    with zipfile.ZipFile(folder / "ml-1m.zip", "w") as packed:
        packed.writestr("ml-1m/ratings.dat", "".join(f"{user}::{item}::5::978300760\n" for user, item in likes))
        packed.writestr("ml-1m/movies.dat", "".join(f"{i}::Film {i} (1999)::Drama\n" for i in range(1, ITEMS + 1)))
    with tarfile.open(folder / "netflix-prize.tar.gz", "w:gz") as packed:
        for item in range(1, ITEMS + 1):
            lines = [f"{user},5,2005-09-06\n" for user, other in likes if other == item]
            content = "".join([f"{item}:\n", *lines]).encode()
            entry = tarfile.TarInfo(f"training_set/mv_{item:07}.txt")
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))


# ------------------------------------------------------------------------------------------------------------ schedules


def _toy(patch: Patch, folder: Path) -> None:
    from experiments.toy import recipes

    whole, short = recipes.Settings, {"draws": 5, "grid": 3, "examples": 200, "trace_steps": 4, "trace_draws": 5, "networks": 2, "networks_draws": 5}  # fmt: skip
    patch(recipes, "Settings", lambda **given: whole(**given | short))
    patch(recipes, "__file__", str(folder / "experiments" / "toy" / "recipes.py"))  # results go beside it


def _cifar10(patch: Patch, folder: Path) -> None:
    from experiments.cifar10 import recipes
    from experiments.networks import vgg
    from experiments.vision import cifar10

    short = {"size": 32, "batch": 10, "epochs": 1, "width": 16, "pool": 1, "validation": 20, "samples": 2}
    release = cifar10.Release(TRAIN, TEST, cifar10.OFFICIAL.archives)
    patch(cifar10.load, "__kwdefaults__", {**(cifar10.load.__kwdefaults__ or {}), "release": release})
    patch(vgg, "CHANNELS", CHANNELS)
    patch(recipes, "METHODS", {name: recipes.METHODS[name] for name in ("lbd-unit", "regular")})
    patch(recipes, "RECIPES", {name: recipe | short for name, recipe in recipes.RECIPES.items()})
    patch(recipes, "_convolutions", recipes._convolutions.__wrapped__)  # what is kept there are those of other widths
    patch(recipes, "__file__", str(folder / "experiments" / "cifar10" / "recipes.py"))


def _camvid(patch: Patch, folder: Path) -> None:
    from experiments.camvid import recipes
    from experiments.networks.tiramisu import Plan

    short = {"plan": Plan((1, 1, 1, 1, 1), 2, 4), "crop": 32, "rounds": (recipes.Round(1, batch=3),), "epochs": 1, "batch": 3,
             "samples": 2, "crop_scale": (1.0, 1.25)}  # fmt: skip
    patch(recipes, "TABLE", ("lbd", "mc"))
    patch(recipes, "RECIPES", {name: recipe | short for name, recipe in recipes.RECIPES.items()})
    patch(recipes, "__file__", str(folder / "experiments" / "camvid" / "recipes.py"))


def _collaborative(patch: Patch, folder: Path) -> None:
    from experiments.collaborative import recipes
    from experiments.collaborative.data import movielens, netflix, protocols

    for module, count in ((netflix, "RATINGS"), (movielens, "ML_1M_RATINGS")):
        patch(module, count, 10 * USERS)
    few = {name: replace(protocol, held_out_users=HELD_OUT) for name, protocol in protocols.PROTOCOLS.items()}
    patch(protocols, "PROTOCOLS", few)
    rows = ("sivae-lbd", "vae", *recipes.GRIDS, "ease", "popularity")
    patch(recipes, "ROWS", {row: recipes.ROWS[row] for row in rows})
    patch(recipes, "GRID_RATES", (0.0, 0.5))
    short = {name: schedule._replace(epochs=1, anneal_steps=10, batch=20) for name, schedule in recipes.DATA.items()}
    patch(recipes, "DATA", short)
    patch(recipes, "__file__", str(folder / "experiments" / "collaborative" / "recipes.py"))


def _rates(patch: Patch, folder: Path) -> None:
    from experiments.rates import contestants, pool, run, tasks
    from experiments.rates.record import CONTESTANTS

    patch(pool, "usual_workers", lambda device: 1)  # other processes would know nothing of these
    few = ("none", "tuned-layer")
    patch(contestants, "CONTESTANTS", {name: CONTESTANTS[name] for name in few})
    patch(tasks, "TASKS", {name: replace(task, epochs=1) for name, task in tasks.TASKS.items()})
    patch(run, "RESULTS", folder / "experiments" / "rates" / "results")


def _fit(patch: Patch, folder: Path) -> None:
    from lbdrop.recommend.model import settings

    patch(settings, "METHODS", {name: replace(method, epochs=5) for name, method in settings.METHODS.items()})


def _demo(patch: Patch, folder: Path) -> None:
    from experiments.commands import demo
    from experiments.demo import shop as demo_shop

    digits, shop = demo.Settings.quick(), demo_shop.ShopSettings.quick()
    patch(demo, "Settings", lambda: replace(digits, epochs=1, hidden=8))
    patch(demo_shop, "ShopSettings", lambda: replace(shop, users=260, items=24, held_out=30))


def _fuzz(patch: Patch, folder: Path) -> None:
    from benchmarks import fuzz_images, fuzz_inputs

    patch(fuzz_inputs, "RECOMMENDER", {"fit: CSV": fuzz_inputs.RECOMMENDER["fit: CSV"]})
    patch(fuzz_images, "VISION", {})


SHORT: dict[str, Callable[[Patch, Path], None]] = {
    "toy": _toy,
    "cifar10": _cifar10,
    "camvid": _camvid,
    "netflix": _collaborative,
    "rates": _rates,
    "fit": _fit,
    "demo": _demo,
    "fuzz": _fuzz,
}
"""By what is made short; results then go to ``experiments`` of a folder, never into the checkout."""

HOOK = """
import os, sys, traceback
if "torch.distributed.run" not in sys.orig_argv:  # it only starts the others
    try:
        import pathlib
        from helpers import stand_ins
        for name in {names}:
            stand_ins.SHORT[name](setattr, pathlib.Path({folder!r}))
    except BaseException:  # Python would go on, and work for hours
        traceback.print_exc()
        os._exit(1)
"""


def write_hook(folder: Path, *names: str) -> str:
    """A PYTHONPATH under which every Python process makes these short as it starts; results go to the folder."""
    tests = Path(__file__).parent.parent
    (folder / "hook").mkdir()
    (folder / "hook" / "sitecustomize.py").write_text(HOOK.format(names=names, folder=str(folder)))
    return ":".join(map(str, (folder / "hook", tests, tests.parent)))
