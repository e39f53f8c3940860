"""The families of torchvision, at small images."""

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.zoo.models import BATCH, Entry, Made, package, stub_torchvision

__all__ = ["torchvision_entries"]

SIDES = {"vgg11": 32, "inception_v3": 96, "maxvit_t": 224}
IMAGES = (
    "alexnet", "vgg11", "googlenet", "inception_v3", "densenet121", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small",
    "efficientnet_b0", "efficientnet_v2_s", "convnext_tiny", "swin_t", "swin_v2_t", "vit_b_32", "maxvit_t", "squeezenet1_1",
    "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large", "fcn_resnet50", "deeplabv3_resnet50",
)  # fmt: skip
VIDEOS = {"s3d": (16, 64), "mvit_v1_b": (8, 64), "swin3d_t": (4, 64)}
SETTINGS: dict[str, dict[str, Any]] = {
    "densenet121": {"drop_rate": 0.1}, "vit_b_32": {"dropout": 0.1, "attention_dropout": 0.1, "image_size": 64},
    "swin_t": {"dropout": 0.1, "attention_dropout": 0.1}, "swin_v2_t": {"dropout": 0.1, "attention_dropout": 0.1},
    "mvit_v1_b": {"spatial_size": (64, 64), "temporal_size": 8, "dropout": 0.1},
    "googlenet": {"aux_logits": False, "init_weights": False}, "inception_v3": {"aux_logits": False, "init_weights": False},
    "deeplabv3_mobilenet_v3_large": {"weights_backbone": None}, "lraspp_mobilenet_v3_large": {"weights_backbone": None},
    "fcn_resnet50": {"weights_backbone": None}, "deeplabv3_resnet50": {"weights_backbone": None},
}  # fmt: skip


def torchvision_entries() -> Iterator[Entry]:
    for name, side in ((name, SIDES.get(name, 64)) for name in IMAGES):
        yield Entry("torchvision", name, lambda name=name, side=side: make(name, (3, side, side)))
    for name, (frames, side) in VIDEOS.items():
        yield Entry("torchvision", name, lambda name=name, f=frames, s=side: make(name, (3, f, s, s)))


def make(name: str, shape: tuple[int, ...]) -> Made:
    stub_torchvision()
    torch.manual_seed(0)
    segmentation = "backbone" in str(SETTINGS.get(name))
    model = package("torchvision.models").get_model(name, weights=None, num_classes=5, **SETTINGS.get(name, {}))
    x = torch.randn(BATCH - 1 if segmentation else BATCH, *shape, generator=torch.Generator().manual_seed(1))
    return Made(model.eval(), (x,), len(x))
