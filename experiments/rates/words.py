"""Windows of words of Python's own documentation, by the topic that they are of; networks that read words.

The topics that are told apart are named here; those for pretraining are all others. What ``help()`` says differs by Python.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["Bert", "Recurrent", "load", "pretrained"]

Pair = tuple[Tensor, Tensor]
TOPICS = (
    "specialnames", "compound", "types", "formatstrings", "string-methods", "debugger", "typesseq", "import",
)  # fmt: skip
WINDOW, WORDS, SIZES = 24, 1_000, (300, 100)
"""How many words an example has, how many are told apart, and how many examples are to train on and for validation."""
FIRST, OTHER = 0, 1
"""The numbers of what stands before a window, and of a rare word."""
LEAST = 10
"""Windows of a topic that is pretrained on."""


def load(folder: Path, seed: int) -> tuple[Pair, Pair, Pair, float]:
    """300 windows to train on, 100 for validation, the rest for test; no window is in two parts."""
    x, y = _windows(TOPICS)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, validation, test = order.tensor_split([SIZES[0], sum(SIZES)])
    return (x[train], y[train]), (x[validation], y[validation]), (x[test], y[test]), 1.0


@lru_cache(maxsize=2)
def _windows(names: tuple[str, ...] | None) -> Pair:
    """Each window once, and the number of its topic; of all topics but those above where none is named."""
    texts, known = _texts()
    found: dict[tuple[int, ...], int] = {}
    if names is None:
        long = (name for name in texts if len(texts[name]) >= LEAST * WINDOW)
        names = tuple(name for name in long if name not in TOPICS)
    for topic, name in enumerate(names):
        words = [known.get(word, OTHER) for word in texts[name]]
        for start in range(0, len(words) - WINDOW + 1, WINDOW):
            found.setdefault((FIRST, *words[start : start + WINDOW]), topic)
    return torch.tensor([*found]), torch.tensor([*found.values()])


@lru_cache(maxsize=1)
def _texts() -> tuple[dict[str, list[str]], dict[str, int]]:
    """The words of every topic, and the numbers of the most frequent."""
    from pydoc_data.topics import topics

    texts = {name: "".join(c if c.isalpha() else " " for c in topics[name].lower()).split() for name in sorted(topics)}
    counts: dict[str, int] = {}
    for word in (word for words in texts.values() for word in words):
        counts[word] = counts.get(word, 0) + 1
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:WORDS]
    return texts, {word: OTHER + 1 + i for i, word in enumerate(frequent)}


class Bert(nn.Module):
    """A BERT of transformers, from its configuration, with two layers."""

    def __init__(self, rate: float, classes: int = len(TOPICS), width: int = 32):
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification

        settings: Any = BertConfig
        self.bert = BertForSequenceClassification(
            settings(
                vocab_size=OTHER + 1 + WORDS, hidden_size=width, num_hidden_layers=2, num_attention_heads=2,
                intermediate_size=2 * width, max_position_embeddings=WINDOW + 1, num_labels=classes,
                hidden_dropout_prob=rate, attention_probs_dropout_prob=rate,
            )
        )  # fmt: skip

    def forward(self, x: Int[Tensor, "batch words"]) -> Float[Tensor, "batch classes"]:
        return self.bert(input_ids=x).logits


class Recurrent(nn.Module):
    """An LSTM of two layers; dropout on its inputs, between its layers and on its last state."""

    def __init__(self, rate: float, width: int = 48):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(OTHER + 1 + WORDS, width), nn.Dropout(rate)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True, dropout=rate)
        self.last, self.output = nn.Dropout(rate), nn.Linear(width, len(TOPICS))

    def forward(self, x: Int[Tensor, "batch words"]) -> Float[Tensor, "batch classes"]:
        return self.output(self.last(self.lstm(self.dropout(self.embedding(x)))[0][:, -1]))


EPOCHS, BATCH = 10, 50
"""Of pretraining."""


def pretrained(rate: float) -> Bert:
    """A BERT that has learned to tell the other topics apart, under a new head."""
    model = Bert(rate)
    body = {name: value for name, value in _pretrained().items() if not name.startswith("bert.classifier")}
    model.load_state_dict(body, strict=False)
    return model


@lru_cache(maxsize=1)
def _pretrained() -> dict[str, Tensor]:
    """Once in each process."""
    x, y = _windows(None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Bert(0.1, int(y.max()) + 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(x)).split(BATCH):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
    return model.state_dict()
