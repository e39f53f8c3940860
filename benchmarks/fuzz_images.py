"""The readers of images and weights, with small valid inputs; see :mod:`benchmarks.fuzz_inputs`."""

import hashlib
import io
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzz_inputs import Contents, Reader, command, npz, packed_tar, packed_zip, reported

__all__ = ["VISION"]


@cache
def cifar10() -> dict[str, Any]:
    """A release of ten training images and three for the test, in every format."""
    from experiments.vision.cifar10 import FILES, OFFICIAL, Release

    pixels = np.random.default_rng(0).integers(0, 256, (13, 3072), dtype=np.uint8)
    labels = np.arange(13) % 10
    parts = {file: slice(2 * i, 2 * i + 2) if i < 5 else slice(10, 13) for i, file in enumerate(FILES)}
    rows = np.concatenate([labels[:, None].astype(np.uint8), pixels], 1)
    binary = {f"{file}.bin": rows[part].tobytes() for file, part in parts.items()}
    python = {
        file: pickle.dumps({b"labels": labels[part].tolist(), b"data": pixels[part]}, protocol=2)
        for file, part in parts.items()
    }
    images = pixels.reshape(-1, 3, 32, 32)
    npzs = {"cifar10-0.npz": npz(x=images[:6], y=labels[:6]), "cifar10-1.npz": npz(x=images[6:], y=labels[6:])}
    return {"binary": binary, "python": python, "npz": npzs, "release": Release(10, 3, OFFICIAL.archives)}


def cifar10_read(at: Path) -> None:
    from experiments.vision.cifar10 import load

    load(at, download=False, release=cifar10()["release"])


def cifar10_archive() -> Contents:
    return {
        "cifar-10-binary.tar.gz": packed_tar({f"cifar-10-batches-bin/{n}": d for n, d in cifar10()["binary"].items()})
    }


def cifar10_archive_read(at: Path) -> None:
    """As if the checksum were the official one, so that what is behind it is read."""
    from experiments.vision.cifar10 import load

    path, release = at / "cifar-10-binary.tar.gz", cifar10()["release"]
    found = replace(release.archives[0], sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    load(path, download=False, release=replace(release, archives=(found, release.archives[1])))


@cache
def tiny_imagenet() -> Contents:
    from PIL import Image

    files = {"val_annotations.txt": b"val_0.JPEG\tn02123045\t0\t0\t62\t62\nval_1.JPEG\tn07753592\t0\t0\t62\t62\n"}
    for i in range(2):
        made = io.BytesIO()
        Image.new("RGB", (64, 64), (40 * i, 9, 99)).save(made, "JPEG")
        files[f"images/val_{i}.JPEG"] = made.getvalue()
    return files


def tiny_imagenet_read(at: Path) -> None:
    from experiments.vision.tiny_imagenet import load

    load(at, count=2)


def cached_read(at: Path) -> None:
    from experiments.vision.tiny_imagenet import load_cached

    load_cached(at / "cache.npz")


@cache
def vgg() -> dict[str, bytes]:
    import torch
    from safetensors.torch import save

    state = {"features.0.weight": torch.randn(64, 3, 3, 3), "features.0.bias": torch.randn(64)}
    made = io.BytesIO()
    torch.save(state, made)
    arrays = {"conv1_1.weight": np.zeros((64, 3, 3, 3), np.float16), "pre.bias": np.zeros(3)}
    return {"vgg.pth": made.getvalue(), "vgg.safetensors": save(state), "vgg.npz": npz(**arrays)}


def vgg_read(name: str) -> Callable[[Path], None]:
    def read(at: Path) -> None:
        import torch

        from experiments.networks.vgg import VGG

        with torch.device("meta"):
            VGG(11, classes=2, width=4, pool=1).load(at / name)

    return read


def rates_read(name: str) -> Callable[[Path], None]:
    return lambda at: command("rates", at / name)


@cache
def logits() -> dict[str, bytes]:
    import torch
    from safetensors.torch import save

    state = {"fc.weight": torch.randn(3, 2), "drop.logit": torch.randn(3), "other.logit": torch.zeros(())}
    made = io.BytesIO()
    torch.save({"state_dict": state, "epoch": 1}, made)
    return {"rates.pth": made.getvalue(), "rates.safetensors": save(state)}


@cache
def camvid() -> Contents:
    from PIL import Image

    files: dict[str, bytes] = {}
    for split in ("train", "val", "test"):
        lines = []
        for kind, mode in ((split, "RGB"), (f"{split}annot", "L")):
            made = io.BytesIO()
            Image.new(mode, (12, 9), 3 if mode == "L" else (9, 40, 99)).save(made, "PNG")
            files[f"{kind}/0001.png"] = made.getvalue()
            lines.append(f"/SegNet/CamVid/{kind}/0001.png")
        files[f"{split}.txt"] = " ".join(lines).encode() + b"\n"
    return files


def camvid_read(at: Path) -> None:
    from experiments.vision.camvid import load

    load(at)


def camvid_runs() -> Contents:
    """A record as ``lbdrop reproduce camvid`` writes it, and what its page shows of scenes."""
    from experiments.vision.camvid import CLASSES

    scores = dict.fromkeys(("accuracy", "mean_iou", "nll", "brier", "ece", "pavpu_mean_entropy", "pavpu_sweep"), 0.5)
    record = {
        "experiment": "camvid", "method": "lbd", "label": "LBD", "seed": 0, "recipe": "fast", "protocol": "as ever",
        "settings": {"seed": 0}, "provenance": {"commit": "abc"}, "validation": scores, "test": scores,
        "class_iou": dict.fromkeys(CLASSES, 0.5), "pavpu_curve": {"t": [0.0, 0.5, 1.0], "pavpu": [0.2, 0.8, 0.6]},
        "reliability": {"confidence": [None, 0.75], "accuracy": [None, 0.7], "count": [0, 100]},
        "rates": {"middle": {"mean": 0.25}}, "seconds": {"train": 60.0, "per_epoch": [4.0]}, "peak_bytes": 2**31,
    }  # fmt: skip
    maps = np.linspace(0, 2.4, 2 * 80).reshape(2, 8, 10).astype(np.float16)
    scenes = npz(
        index=np.array([0, 5]), predicted=np.full((2, 8, 10), 3, np.uint8), entropy=maps, mutual_information=maps
    )
    return {"fast-lbd-seed0.json": json.dumps(record).encode(), "fast-lbd-seed0.npz": scenes}


def fashion_read(at: Path) -> None:
    from experiments.rates.images import fashion

    fashion(6, at, 0)


def fashion_files() -> Contents:
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (12, 28, 28), dtype=np.uint8)
    return {"fashion-mnist.npz": npz(train_x=x, train_y=np.arange(12) % 10, test_x=x, test_y=np.arange(12) % 10)}


def uci_files() -> Contents:
    table = "\n".join(f"{i} {i * i} {i % 3}" for i in range(30)).encode()
    parts = {"data.txt": table, "index_features.txt": b"0\n1\n", "index_target.txt": b"2\n",
             "index_train_0.txt": b"\n".join(b"%d" % i for i in range(20)), "index_test_0.txt": b"20\n21\n"}  # fmt: skip
    return {"uci.tar": packed_tar({f"UCI_Datasets/yacht/data/{n}": d for n, d in parts.items()}, "w")}


def uci_read(at: Path) -> None:
    from experiments.rates.uci import load

    load("yacht", at, 0)


VISION: dict[str, Reader] = {
    "CIFAR-10: binary": Reader(lambda: cifar10()["binary"], cifar10_read),
    "CIFAR-10: pickles": Reader(lambda: cifar10()["python"], cifar10_read),
    "CIFAR-10: .npz": Reader(lambda: cifar10()["npz"], cifar10_read),
    "CIFAR-10: archive": Reader(cifar10_archive, cifar10_archive_read),
    "Tiny-ImageNet: folder": Reader(tiny_imagenet, tiny_imagenet_read),
    "Tiny-ImageNet: zip": Reader(
        lambda: {"tiny-imagenet-val.zip": packed_zip(tiny_imagenet())}, tiny_imagenet_read
    ),
    "Tiny-ImageNet: cache": Reader(lambda: {"cache.npz": npz(images=np.zeros((3, 3, 32, 32), np.uint8))}, cached_read),
    "CamVid: folder": Reader(camvid, camvid_read),
    "CamVid: tar": Reader(lambda: {"camvid-0.tar": packed_tar(camvid(), "w")}, camvid_read),
    "report: CamVid": Reader(camvid_runs, reported),
    "Fashion-MNIST": Reader(fashion_files, fashion_read),
    "UCI": Reader(uci_files, uci_read),
    "rates: .pth": Reader(lambda: {"rates.pth": logits()["rates.pth"]}, rates_read("rates.pth")),
    "rates: .safetensors": Reader(
        lambda: {"rates.safetensors": logits()["rates.safetensors"]}, rates_read("rates.safetensors")
    ),
    "VGG: .pth": Reader(lambda: {"vgg.pth": vgg()["vgg.pth"]}, vgg_read("vgg.pth")),
    "VGG: .safetensors": Reader(lambda: {"vgg.safetensors": vgg()["vgg.safetensors"]}, vgg_read("vgg.safetensors")),
    "VGG: .npz": Reader(lambda: {"vgg.npz": vgg()["vgg.npz"]}, vgg_read("vgg.npz")),
}  # fmt: skip
