"""Architectures of transformers, made from their configurations as the zoo makes them: all draws learned, nothing else changed."""

import copy
import warnings

import pytest
import torch

import lbdrop
from benchmarks.zoo.examine import draws, losses, outputs
from benchmarks.zoo.models import settle
from benchmarks.zoo.transformers_models import transformers_entries
from lbdrop.dropout import learned_layers
from lbdrop.sites.example import same_outputs

TEXT = ("albert", "bert", "bert-generation", "biogpt", "bloom", "convbert", "deberta", "distilbert", "electra", "ernie",
        "esm", "fnet", "gpt2", "gpt_neo", "gpt_neox", "layoutlm", "luke", "mpnet", "nystromformer", "opt", "rembert",
        "roformer", "squeezebert", "xlm", "xlnet")  # fmt: skip
TWO_TEXTS = ("bart", "m2m_100", "marian", "mbart", "mt5", "pegasus", "t5")
OTHERS = ("beit", "deit", "dinov2", "poolformer", "segformer", "vit", "clip", "patchtst", "hubert", "wav2vec2")
QUICK = ("bert", "gpt2", "t5", "vit", "wav2vec2")
"""One of each kind; the others are no quick tests, since they are many."""
SAMPLE = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.process) for name in (*TEXT, *TWO_TEXTS, *OTHERS)
]


@pytest.mark.parametrize("name", SAMPLE)
def test_architecture_is_converted_in_two_lines_and_computes_what_it_did(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of transformers, about models that nobody configured so
        made = next(entry for entry in transformers_entries() if entry.name == name).make()
        settle(made)
        plain = copy.deepcopy(made.model)
        found, before = draws(made, plain, seeds=1), outputs(made, plain)
        model = lbdrop.convert(made.model, example=made.inputs, verbose=False)
        with lbdrop.masks.deterministic(model):
            left = draws(made, model, seeds=1)
        assert found.total() > 0
        assert not left
        assert same_outputs(before, outputs(made, model))
        lbdrop.Objective(model.train(), examples=9)(losses(made, torch.zeros(()))).backward()
    gradients = [layer.logit.grad for layer in learned_layers(model).values()]
    assert any(gradient is not None and gradient.abs() > 0 for gradient in gradients)
