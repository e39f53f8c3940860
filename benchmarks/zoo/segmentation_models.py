"""The decoders of segmentation-models-pytorch."""

from collections.abc import Iterator

import torch

from benchmarks.zoo.models import BATCH, RATE, Entry, Made, package, stub_torchvision

__all__ = ["segmentation_entries"]

ENCODERS = {"FPN": "resnet18", "DeepLabV3": "resnet18", "DeepLabV3Plus": "resnet18", "PSPNet": "resnet18",
            "Linknet": "resnet18", "Unet": "timm-efficientnet-b0", "MAnet": "mobilenet_v2", "UPerNet": "mit_b0",
            "Segformer": "mit_b0", "UnetPlusPlus": "timm-efficientnet-b0"}  # fmt: skip


def segmentation_entries() -> Iterator[Entry]:
    for name, encoder in ENCODERS.items():
        yield Entry("segmentation", f"{name} on {encoder}", lambda name=name, encoder=encoder: make(name, encoder))


def make(name: str, encoder: str) -> Made:
    stub_torchvision()
    torch.manual_seed(0)
    noise = {
        "FPN": {"decoder_dropout": RATE},
        "PSPNet": {"psp_dropout": RATE},
        "DeepLabV3": {"decoder_aspp_dropout": RATE},
    }
    model = getattr(package("segmentation_models_pytorch"), name)(
        encoder, encoder_weights=None, classes=3, **noise.get(name, {})
    )
    x = torch.randn(BATCH, 3, 96, 96, generator=torch.Generator().manual_seed(1))
    return Made(model.eval(), (x,))
