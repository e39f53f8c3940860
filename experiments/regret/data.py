"""The data of the setups, in one small file that can be carried to another machine.

    python -m experiments.regret.data --folder data --out data/regret.npz

Digits come with scikit-learn and text with Python (``help()``); the UCI sets and Fashion-MNIST, here of 14 × 14 pixels, are
read as the rates experiment reads them. A UCI set has its standardised columns, whose last is the target.
"""

import argparse
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.regret.distribution import EXAMPLES, UCI, Setup

__all__ = ["Parts", "load", "prepare"]

Pair = tuple[Tensor, Tensor]
TEST = 2_000
"""Test examples at most."""
TOPICS, WINDOW, LETTERS, CONTEXT, WORDS = 8, 32, 16, 32, 400


class Parts(NamedTuple):
    """Of one setup and seed; no example is in two parts."""

    train: Pair
    validation: Pair
    test: Pair
    outputs: int
    """How many the network has."""


@lru_cache(maxsize=1)
def _file(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as found:
        return {name: found[name] for name in found.files}


@lru_cache(maxsize=32)
def _all(path: Path, name: str) -> tuple[Tensor, Tensor, int]:
    """All examples of a set, their answers, and how many outputs a network needs."""
    file = _file(path)
    if name in ("digits", "fashion"):
        x, y = (torch.from_numpy(file[f"{name}-{part}"]) for part in "xy")
        return x.float() / (16 if name == "digits" else 255), y.long(), 10
    if name.startswith("uci-"):
        table = torch.from_numpy(file[name])
        return table[:, :-1], table[:, -1], 1
    if name == "words":
        rows = torch.from_numpy(file[name]).float()
        return rows, rows, rows.shape[1]
    x, y = torch.from_numpy(file[f"{name}-x"]).long(), torch.from_numpy(file[f"{name}-y"]).long()
    return x, y, 128 if name == "characters" else int(y.max()) + 1


def load(path: Path, setup: Setup, seed: int) -> Parts:
    """The examples that a seed draws: to train on, held out beside them, and at most 2,000 for the test."""
    x, y, outputs = _all(path, setup.data)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=generator)
    held_out = max(10, round(setup.examples * setup.held_out))
    train, validation, test = order[: setup.examples + held_out + TEST].split(
        [setup.examples, held_out, min(TEST, len(x) - setup.examples - held_out)]
    )
    rows = torch.cat([train, validation, test])
    answers = y[rows]
    if setup.label_noise:
        # The answers of other examples: the share of each class, or the spread of the target, stays what it is.
        wrong = torch.rand(len(rows), generator=generator) < setup.label_noise
        answers = torch.where(wrong, answers[torch.randperm(len(rows), generator=generator)], answers)
    pairs = zip(x[rows].split([len(train), len(validation), len(test)]),
                answers.split([len(train), len(validation), len(test)]), strict=True)  # fmt: skip
    return Parts(*pairs, outputs=outputs)


# ------------------------------------------------------------------------------------------------------------- the file


def prepare(folder: Path, out: Path) -> Path:
    """Write the file from the data that the rates experiment reads."""
    from sklearn.datasets import load_digits

    from experiments.rates import images, uci

    rng = np.random.default_rng(0)
    pixels, classes = load_digits(return_X_y=True)
    found = {"digits-x": np.asarray(pixels, np.uint8).reshape(-1, 8, 8), "digits-y": np.asarray(classes, np.uint8)}
    train, _, test, _ = images.fashion(50_000, folder, 0)
    small = F.avg_pool2d(torch.cat([train[0], test[0]])[:, None], 2)[:, 0]
    rows = torch.from_numpy(rng.permutation(len(small))[: EXAMPLES["fashion"]])
    found["fashion-x"] = (small[rows] * 255).round().to(torch.uint8).numpy()
    found["fashion-y"] = torch.cat([train[1], test[1]])[rows].to(torch.uint8).numpy()
    for name in UCI:
        parts = uci.load(name, folder, 0)[:3]
        table = np.concatenate([np.column_stack([x.numpy(), y.numpy()]) for x, y in parts])
        table = table[rng.permutation(len(table))[: EXAMPLES[f"uci-{name}"]]]
        spread = table.std(0)
        found[f"uci-{name}"] = ((table - table.mean(0)) / np.where(spread == 0, 1, spread)).astype(np.float32)
    found |= _text(rng)
    for name, count in EXAMPLES.items():
        there = len(found.get(name, found.get(f"{name}-x", ())))
        assert there >= count, f"{name}: want {count} examples, got {there}"
    np.savez_compressed(out, **found)  # pyright: ignore[reportArgumentType]
    return out


def _text(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Of Python's own documentation: which topic a window is of, whether most of its letters come early in the alphabet, which
    character is next, and the words of a passage."""
    from pydoc_data.topics import topics

    texts = {name: "".join(c if c.isascii() else "?" for c in topics[name]) for name in sorted(topics)}
    longest = sorted(texts, key=lambda name: -len(texts[name]))[:TOPICS]
    found = {}
    windows = [(_codes(texts[name], WINDOW, WINDOW), i) for i, name in enumerate(longest)]
    x, y = np.concatenate([w for w, _ in windows]), np.concatenate([np.full(len(w), i) for w, i in windows])
    found |= _shuffled("topics", x, y, rng)
    whole = "\n".join(texts.values())
    letters = _codes("".join(c for c in whole.lower() if c.isalpha()), LETTERS, LETTERS)
    found |= _shuffled("letters", letters, (letters < ord("m")).sum(1) > LETTERS // 2, rng)
    stream = _codes(whole, CONTEXT + 1, CONTEXT)
    found |= _shuffled("characters", stream[:, :-1], stream[:, 1:], rng)
    words = ["".join(c if c.isalpha() else " " for c in passage.lower()).split() for passage in whole.split("\n")]
    passages = [[w for line in words[i : i + 4] for w in line] for i in range(0, len(words), 4)]
    counts: dict[str, int] = {}
    for passage in passages:
        for word in set(passage):
            counts[word] = counts.get(word, 0) + 1
    known = {word: i for i, word in enumerate(sorted(counts, key=lambda w: (-counts[w], w))[:WORDS])}
    rows = np.zeros((len(passages), WORDS), np.uint8)
    for row, passage in zip(rows, passages, strict=True):
        row[[known[word] for word in passage if word in known]] = 1
    rows = rows[rows.sum(1) >= 5]
    found["words"] = rows[rng.permutation(len(rows))[: EXAMPLES["words"]]]
    return found


def _codes(text: str, length: int, stride: int) -> np.ndarray:
    """Windows of a text as the numbers of its characters."""
    codes = np.frombuffer(text.encode("ascii"), np.uint8)
    starts = np.arange(0, len(codes) - length + 1, stride)
    return codes[starts[:, None] + np.arange(length)]


def _shuffled(name: str, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    rows = rng.permutation(len(x))[: EXAMPLES[name]]
    return {f"{name}-x": x[rows], f"{name}-y": y[rows].astype(np.uint8)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("data"), help="where Fashion-MNIST and the UCI sets are")
    parser.add_argument("--out", type=Path, default=Path("data/regret.npz"))
    arguments = parser.parse_args()
    print(prepare(arguments.folder, arguments.out))
