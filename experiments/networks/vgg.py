"""VGG with a choice of dropout: blocks of 3 × 3 convolutions, then three linear layers with a dropout after each ReLU.

The layers are named as in torchvision, so its weight files fit. Every network takes RGB in [0, 1]: a fixed 1 × 1
convolution, ``pre``, turns that into what its weights were trained on.

Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition, ICLR 2015.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from experiments.archives import read_npz
from experiments.networks.images import check_images
from lbdrop.errors import DropoutError, first_line

__all__ = ["VGG", "Pre"]

BLOCKS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""Depth → convolutions in each of the five blocks; the three linear layers make up the rest."""
CHANNELS = (64, 128, 256, 512, 512)
SMALLEST = 32  # five poolings halve it to one pixel

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Pre(nn.Module):
    """The 1 × 1 convolution before the network; ImageNet's mean and deviation unless a weight file brings its own.

    Its numbers are buffers: they belong to the weights that were trained behind them, and are not trained further.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self):
        super().__init__()
        for name, value in _imagenet().items():
            self.register_buffer(name, value)
        self.register_load_state_dict_pre_hook(_imagenet_unless_given)

    def forward(self, images: Tensor) -> Tensor:
        check_images(images, SMALLEST)
        return F.conv2d(images, self.weight, self.bias)


class VGG(nn.Module):
    """VGG11, 13, 16 or 19 without batch normalisation.

    Args:
        depth: 11, 13, 16 or 19.
        dropout: called twice with ``width``, for the dropout after each hidden layer of the classifier.
        classes: how many outputs.
        width: units of each hidden layer of the classifier.
        pool: the last map is averaged to ``pool`` × ``pool``, so the classifier reads 512 · pool² numbers; 7 is
            torchvision's, 1 or 2 suit small images.
        generator: draws the starting weights, as torchvision does: convolutions by He's rule over the outputs, linear
            layers with deviation 0.01, biases 0.

    Example:
        >>> from lbdrop import LearnableDropout
        >>> model = VGG(11, dropout=LearnableDropout, classes=10, width=64, pool=1)
        >>> model.classifier
        Sequential(
          (0): Linear(in_features=512, out_features=64, bias=True)
          (1): ReLU(inplace=True)
          (2): LearnableDropout(64 units, keep=0.50, scale=inverted)
          (3): Linear(in_features=64, out_features=64, bias=True)
          (4): ReLU(inplace=True)
          (5): LearnableDropout(64 units, keep=0.50, scale=inverted)
          (6): Linear(in_features=64, out_features=10, bias=True)
        )
        >>> model(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        depth: int = 19,
        *,
        dropout: Callable[[int], nn.Module] = lambda channels: nn.Dropout(0.5),
        classes: int = 1000,
        width: int = 4096,
        pool: int = 7,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        if depth not in BLOCKS:
            raise DropoutError(f"depth: want one of {', '.join(map(str, BLOCKS))}, got {depth}")
        for name, value in (("classes", classes), ("width", width), ("pool", pool)):
            if value < 1:
                raise DropoutError(f"{name}: want at least 1, got {value}")
        if isinstance(dropout, nn.Module):
            raise DropoutError(
                f"dropout: want a function from the number of units to a layer, got the layer {dropout}; pass"
                " LearnableDropout itself, or lambda units: LearnableDropout(units, rate=0.2)"
            )
        self.depth = depth
        self.pre = Pre()
        self.features = _convolutions(BLOCKS[depth])
        self.avgpool = nn.AdaptiveAvgPool2d(pool)
        self.classifier = nn.Sequential(
            nn.Linear(CHANNELS[-1] * pool * pool, width), nn.ReLU(inplace=True), dropout(width),
            nn.Linear(width, width), nn.ReLU(inplace=True), dropout(width),
            nn.Linear(width, classes),
        )  # fmt: skip
        self._initialise(generator)

    def forward(self, images: Tensor) -> Float[Tensor, "batch classes"]:
        return self.classifier(self.trunk(images))

    def trunk(self, images: Tensor) -> Float[Tensor, "batch features"]:
        """What the classifier reads; no dropout comes before it, so it can be computed once and kept."""
        return torch.flatten(self.avgpool(self.features(self.pre(images))), 1)

    def load(self, path: str | Path, *, fresh: str | Sequence[str] = ()) -> "VGG":
        """Take weights from a file; on any mismatch nothing is changed.

        Args:
            path: either torchvision's state dict (``.pth``, ``.pt`` or ``.safetensors``), or convolutions only in an
                ``.npz`` with the arrays ``conv1_1.weight``, ``conv1_1.bias``, … ``conv5_4.bias`` of any float type,
                and ``pre.weight`` (3, 3, 1, 1), ``pre.bias`` (3,): the 1 × 1 convolution that takes RGB in [0, 1] to
                the input of ``conv1_1``. With the latter the classifier stays as it is.
            fresh: layers to leave as they are, by name: ``"classifier.6"`` for other classes, ``"classifier"``
                for another width or pool.
        """
        path, fresh = Path(path), (fresh,) if isinstance(fresh, str) else tuple(fresh)
        for prefix in fresh:
            if not any(_below(name, prefix) for name in self.state_dict()):
                raise DropoutError(f"fresh: no layer {prefix!r} in VGG{self.depth}; want names such as 'classifier.6'")
        if path.suffix == ".npz":
            found, needed = self._renamed(path, _read_npz(path)), ("pre", "features")
        else:
            found, needed = _read_state(path), ("features", *(f"classifier.{i}" for i in (0, 3, 6)))
        found = {name: value for name, value in found.items() if not any(_below(name, prefix) for prefix in fresh)}
        self._check(path, found, needed, fresh)
        if "pre" in fresh:
            found |= {f"pre.{name}": value for name, value in self.pre.state_dict().items()}
        self.load_state_dict(found, strict=False)
        return self

    def _check(self, path: Path, found: Mapping[str, Tensor], needed: Sequence[str], fresh: Sequence[str]) -> None:
        own = {name: tuple(value.shape) for name, value in self.state_dict().items()}
        needed_names = [name for name in own if any(_below(name, prefix) for prefix in needed)]
        needed_names = [name for name in needed_names if not any(_below(name, prefix) for prefix in fresh)]
        for name in dict.fromkeys([*needed_names, *found]):
            got = tuple(found[name].shape) if name in found else None
            if name not in own:
                raise DropoutError(
                    f"{path}: {name}: want no such layer in VGG{self.depth}, got shape {got}; {self._advice(name, found)}"
                )
            if got != own[name]:
                raise DropoutError(
                    f"{path}: {name}: want shape {own[name]}, got {got or 'nothing of that name'};"
                    f" {self._advice(name, found)}"
                )
            if not torch.isfinite(found[name]).all():
                raise DropoutError(f"{path}: {name}: want finite numbers, got inf or nan; fetch the file again")

    def _advice(self, name: str, found: Mapping[str, Tensor]) -> str:
        if _below(name, "classifier.6"):
            return "pass fresh='classifier.6' to start that layer fresh, or give VGG the file's number of classes"
        if _below(name, "classifier"):
            return "pass fresh='classifier' to start its layers fresh, or give VGG the width and pool of the file"
        return self._other_depth(sum(value.dim() == 4 and _below(key, "features") for key, value in found.items()))

    def _other_depth(self, convolutions: int) -> str:
        depth = convolutions + 3
        if depth in BLOCKS and depth != self.depth:
            return (
                f"the file has the convolutions of VGG{depth}: build VGG({depth}), or find weights of VGG{self.depth}"
            )
        return f"find weights of VGG{self.depth} without batch normalisation, named as VGG.load says"

    def _renamed(self, path: Path, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """From conv3_1, the name in the paper's notation, to features.10, the name in the module."""
        paper = [f"conv{block}_{i}" for block, n in enumerate(BLOCKS[self.depth], 1) for i in range(1, n + 1)]
        convolutions = [name for name, m in self.features.named_children() if isinstance(m, nn.Conv2d)]
        module = dict(zip(paper, (f"features.{name}" for name in convolutions), strict=True)) | {"pre": "pre"}
        advice = self._other_depth(sum(name.startswith("conv") and name.endswith(".weight") for name in arrays))
        # Said here, where the name is still the file's own.
        for name in (f"{layer}.{part}" for layer in module for part in ("weight", "bias")):
            if name not in arrays:
                raise DropoutError(f"{path}: {name}: want this array, got only {_some(arrays)}; {advice}")
        for name, value in arrays.items():
            if name.partition(".")[0] not in module:
                raise DropoutError(
                    f"{path}: {name}: want no such array for VGG{self.depth}, got shape {tuple(value.shape)}; {advice}"
                )
        return {f"{module[name.partition('.')[0]]}.{name.partition('.')[2]}": value for name, value in arrays.items()}

    def _initialise(self, generator: torch.Generator | None) -> None:
        for m in (*self.features, *(self.classifier[i] for i in (0, 3, 6))):
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu", generator=generator)
            elif isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, 0.0, 0.01, generator=generator)
            if isinstance(m, nn.Conv2d | nn.Linear) and m.bias is not None:
                nn.init.zeros_(m.bias)


def _convolutions(blocks: Sequence[int]) -> nn.Sequential:
    layers, before = [], 3
    for repeats, channels in zip(blocks, CHANNELS, strict=True):
        for _ in range(repeats):
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU(inplace=True)]
            before = channels
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


def _imagenet() -> dict[str, Tensor]:
    mean, std = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
    return {"weight": torch.diag(1 / std)[:, :, None, None], "bias": -mean / std}


def _imagenet_unless_given(pre: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    # A state dict without these is torchvision's, whose weights expect ImageNet's mean and deviation.
    for name, value in _imagenet().items():
        state_dict.setdefault(prefix + name, value)


def _below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def _some(names: Mapping[str, Any]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "") or "an empty file"


# ------------------------------------------------------------------------------------------------------------- files


def _read_npz(path: Path) -> dict[str, Tensor]:
    _found(path)
    try:
        return {name: _tensor(name, value) for name, value in read_npz(path).items()}
    except DropoutError as error:
        raise DropoutError(f"{path}: want an .npz of number arrays, got {error}; fetch it again") from error


def _tensor(name: str, value: np.ndarray) -> Tensor:
    if value.dtype.kind != "f":
        raise DropoutError(f"{name} of {value.dtype}")
    return torch.from_numpy(value.astype(value.dtype.newbyteorder("="), copy=False))


def _read_state(path: Path) -> dict[str, Tensor]:
    _found(path)
    try:
        state = _safetensors(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except DropoutError:
        raise
    except Exception as error:  # a damaged file can fail in any way at all
        raise DropoutError(
            f"{path}: want a state dict of tensors, got {first_line(error)}; fetch it again, and if it holds a whole model,"
            " save model.state_dict() of it"
        ) from error
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        what = f"a mapping with {_some(state)}" if isinstance(state, Mapping) else type(state).__name__
        raise DropoutError(f"{path}: want a mapping of names to tensors, got {what}; save model.state_dict() itself")
    return dict(state)


def _safetensors(path: Path) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise DropoutError(f"{path}: reading it needs safetensors; install it with pip install safetensors") from error
    try:
        return load_file(path)
    except SafetensorError as error:
        raise DropoutError(f"{path}: want a safetensors file, got {first_line(error)}; fetch it again") from error


def _found(path: Path) -> None:
    if not path.is_file():
        raise DropoutError(
            f"{path}: want a file of weights, got none there; torchvision's VGG files fit, or leave load out"
        )
