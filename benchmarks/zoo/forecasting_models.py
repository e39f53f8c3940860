"""Networks of neuralforecast and pytorch-forecasting, without their trainers."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.zoo.models import RATE, Entry, Made, package

__all__ = ["forecasting_entries"]

ROWS, PAST, FUTURE = 5, 24, 6
NETWORKS = ("PatchTST", "iTransformer", "Informer", "Autoformer", "FEDformer", "TSMixer", "TiDE", "NHITS", "TFT", "TCN", "LSTM",
            "GRU", "DeepAR", "VanillaTransformer", "TimeMixer", "SOFTS", "NBEATS", "KAN", "TimeXer", "BiTCN")  # fmt: skip


class Window(nn.Module):
    """A network of neuralforecast on one tensor of past values."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, past: Tensor) -> Tensor:
        batch: dict[str, Any] = {
            "insample_y": past.unsqueeze(-1), "insample_mask": torch.ones_like(past).unsqueeze(-1), "futr_exog": None,
            "hist_exog": None, "stat_exog": None,
        }  # fmt: skip
        return self.network(batch)


def forecasting_entries() -> Iterator[Entry]:
    for name in NETWORKS:
        yield Entry("forecasting", name, lambda name=name: make(name))


def make(name: str) -> Made:
    import inspect

    torch.manual_seed(0)
    kind = getattr(package("neuralforecast.models"), name)
    taken = inspect.signature(kind.__init__).parameters
    sizes = {"hidden_size": 16, "n_head": 2, "n_heads": 2, "encoder_layers": 2, "decoder_layers": 1, "e_layers": 2, "d_ff": 16,
             "conv_hidden_size": 16, "linear_hidden_size": 16, "patch_len": 6, "stride": 3, "n_block": 2, "ff_dim": 16,
             "encoder_n_layers": 2, "encoder_hidden_size": 16, "decoder_hidden_size": 16, "decoder_layers_": 1,
             "lstm_n_layers": 2, "lstm_hidden_size": 16, "n_series": 1, "d_model": 16, "max_steps": 1}  # fmt: skip
    noise = {key: RATE for key in taken if "drop" in key and "drop_last" not in key and key != "exclude_insample_y"}
    settings = {key: value for key, value in sizes.items() if key in taken} | noise
    if name == "NBEATS":  # it takes a rate that it has no dropout for
        noise = {}
    if name == "FEDformer":
        settings["n_head"] = 8
    network = kind(h=FUTURE, input_size=PAST, **settings)
    x = torch.randn(ROWS, PAST, generator=torch.Generator().manual_seed(1))
    return Made(Window(network).eval(), (x,), ROWS)
