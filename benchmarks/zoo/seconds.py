"""How long ``convert`` takes: BERT of twelve layers as it comes, in seconds of CPU, the least of several conversions.

Run: ``python -m benchmarks.zoo.seconds``.
"""

import copy
import time
from pathlib import Path

import torch

import lbdrop
from benchmarks.zoo.models import stub_torchvision
from lbdrop.dropout import learned_layers
from lbdrop.io.records import package_version, provenance, write_json

RESULT = Path(__file__).parent.parent / "results" / "convert.json"
TIMES = 7


def main() -> None:
    """Convert copies of one model, and write the record."""
    stub_torchvision()
    from transformers import BertConfig, BertForSequenceClassification

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, seconds, sites = BertForSequenceClassification(BertConfig()), [], 0
    for _ in range(TIMES):
        one = copy.deepcopy(model)
        started = time.process_time()
        lbdrop.convert(one, verbose=False)
        seconds.append(round(time.process_time() - started, 3))
        sites = len(learned_layers(one))
    content = {"model": "BertForSequenceClassification(BertConfig())", "sites": sites, "cpu_seconds": seconds}
    here = provenance("cpu") | {"packages": {"transformers": package_version("transformers")}}
    write_json(RESULT, content | {"least": min(seconds), "provenance": here})


if __name__ == "__main__":
    main()
