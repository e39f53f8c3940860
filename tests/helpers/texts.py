"""Real text that comes with Python, the docstrings of its standard library, and a tokenizer trained on it."""

import ast
import codecs
import importlib.util
import random
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerFast

MODULES = ("turtle", "_pydecimal", "logging")
VOCABULARY, LENGTH = 512, 24


@cache
def lines(module: str) -> list[str]:
    """The distinct lines of prose in a module's docstrings, in a fixed shuffled order."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text())
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    texts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented)]
    prose = {line.strip() for text in texts for line in text.splitlines()}
    kept = sorted(line for line in prose if len(line) >= 24)
    random.Random(0).shuffle(kept)
    return kept


@cache
def tokenizer() -> Any:
    """Bytes merged to pieces that are frequent in these modules."""
    pieces = ByteLevelBPETokenizer()
    special = ["[PAD]", "[CLS]", "[MASK]"]
    pieces.train_from_iterator(
        (line for module in MODULES for line in lines(module)), vocab_size=VOCABULARY, special_tokens=special,
        show_progress=False,
    )  # fmt: skip
    return PreTrainedTokenizerFast(
        tokenizer_object=pieces._tokenizer, pad_token="[PAD]", cls_token="[CLS]", mask_token="[MASK]"
    )


def encoded(texts: list[str]) -> dict[str, Tensor]:
    prefixed = ["[CLS]" + text for text in texts]
    rows = tokenizer()(prefixed, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt")
    return {"input_ids": rows["input_ids"], "attention_mask": rows["attention_mask"]}


def rows(batch: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """As a dataset gives them: one dict per example."""
    return [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]


def which_module(start: int, stop: int) -> dict[str, Tensor]:
    """Which module is this line from? The lines from ``start`` to ``stop`` of each."""
    found = [(line, y) for y, module in enumerate(MODULES) for line in lines(module)[start:stop]]
    return encoded([line for line, _ in found]) | {"labels": torch.tensor([y for _, y in found])}


def foreign(count: int = 100) -> dict[str, Tensor]:
    """Text in no language that a model has seen: the cipher of the module ``this``, on lines of yet another."""
    return encoded([codecs.encode(line, "rot13") for line in lines("typing")[:count]])


def auroc(known: Tensor, unknown: Tensor) -> float:
    """How often an unknown example has the larger value."""
    return float((unknown[:, None] > known[None]).float().mean())
