"""Networks for tables: rtdl, TabM, TabNet, and the two transformers of tab-transformer-pytorch."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from benchmarks.zoo.models import RATE, Entry, Made, package

__all__ = ["tabular_entries"]

ROWS, NUMBERS = 7, 4


def tabular_entries() -> Iterator[Entry]:
    for name in ("rtdl MLP", "rtdl ResNet", "rtdl FTTransformer", "TabM", "TabTransformer", "FTTransformer", "TabNet"):
        yield Entry("tabular", name, lambda name=name: make(name))


def make(name: str) -> Made:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, NUMBERS, generator=generator)
    codes = torch.stack([torch.randint(size, (ROWS,), generator=generator) for size in (3, 5)], 1)
    model: nn.Module
    inputs: tuple[Tensor, ...] = (x,)
    if name.startswith("rtdl"):
        rtdl = package("rtdl_revisiting_models")
        if name == "rtdl MLP":
            model = rtdl.MLP(d_in=NUMBERS, d_out=2, n_blocks=2, d_block=16, dropout=RATE)
        elif name == "rtdl ResNet":
            model = rtdl.ResNet(d_in=NUMBERS, d_out=2, n_blocks=2, d_block=16, d_hidden=16, d_hidden_multiplier=None,
                                dropout1=RATE, dropout2=RATE)  # fmt: skip
        else:
            model = rtdl.FTTransformer(n_cont_features=NUMBERS, cat_cardinalities=[3, 5], d_out=2, n_blocks=2, d_block=16,
                                       attention_n_heads=2, attention_dropout=RATE, ffn_d_hidden=16, 
                                       ffn_d_hidden_multiplier=None, ffn_dropout=RATE, residual_dropout=RATE)  # fmt: skip
            inputs = (x, codes)
    elif name == "TabM":
        tabm = package("tabm")
        model = tabm.TabM(
            n_num_features=NUMBERS,
            cat_cardinalities=[3, 5],
            d_out=2,
            n_blocks=2,
            d_block=16,
            dropout=RATE,
            k=4,
            start_scaling_init="random-signs",
        )
        inputs = (x, codes)
    elif name == "TabNet":
        tabnet, groups = package("pytorch_tabnet.tab_network").TabNet, torch.eye(NUMBERS)
        model = nn.Sequential(tabnet(NUMBERS, 2, n_d=4, n_a=4, virtual_batch_size=ROWS, group_attention_matrix=groups))
    else:
        lucid = package("tab_transformer_pytorch")
        shared = {"categories": (3, 5), "num_continuous": NUMBERS, "dim": 16, "depth": 2, "heads": 2, "dim_out": 2,
                  "attn_dropout": RATE, "ff_dropout": RATE}  # fmt: skip
        model = getattr(lucid, name)(**shared)
        inputs = (codes, x)
    return Made(model.eval(), inputs, ROWS)
