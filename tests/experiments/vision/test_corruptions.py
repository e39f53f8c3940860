"""Corruptions have the strength that CIFAR-10-C gives them, grow with severity, and come out the same each time."""

import importlib
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from experiments.vision import corrupt, corruptions
from experiments.vision.corruptions import Kind, gaussian_blur, gaussian_noise, jpeg
from lbdrop import DropoutError

KINDS = get_args(Kind)


@pytest.fixture
def images() -> Tensor:
    """Smooth colours with an edge in them, as a photograph has."""
    x = torch.linspace(0, 6, 32)
    waves = torch.sin(x[:, None] + torch.arange(12).view(4, 3, 1, 1)) * torch.cos(1.7 * x)
    waves[:, :, 10:20, 12:25] += 0.4
    return (128 + 70 * waves).clamp(0, 255).to(torch.uint8)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.float() - b.float()).square().mean().sqrt())


@pytest.mark.parametrize("kind", KINDS)
def test_shape_and_type_stay_and_the_original_is_left_alone(images: Tensor, kind: str) -> None:
    before = images.clone()
    for severity in range(1, 6):
        out = corrupt(images, kind, severity, seeded())
        assert out.shape == images.shape
        assert out.dtype == torch.uint8
    assert torch.equal(images, before)


@pytest.mark.parametrize("kind", KINDS)
def test_higher_severity_is_further_from_the_original(images: Tensor, kind: str) -> None:
    distances = [distance(corrupt(images, kind, severity, seeded()), images) for severity in range(1, 6)]
    assert distances[0] > 0
    assert distances == sorted(distances)


@pytest.mark.parametrize("kind", KINDS)
def test_same_generator_gives_the_same_images(images: Tensor, kind: str) -> None:
    assert torch.equal(corrupt(images, kind, 3, seeded()), corrupt(images, kind, 3, seeded()))


def test_noise_differs_between_generators(images: Tensor) -> None:
    assert not torch.equal(
        gaussian_noise(images, 1, seeded()), gaussian_noise(images, 1, torch.Generator().manual_seed(1))
    )


@pytest.mark.parametrize(("severity", "deviation"), [(1, 0.04), (2, 0.06), (3, 0.08), (4, 0.09), (5, 0.10)])
def test_noise_has_the_published_deviation(severity: int, deviation: float) -> None:
    grey = torch.full((20, 3, 32, 32), 128, dtype=torch.uint8)
    noise = (gaussian_noise(grey, severity, seeded()).float() - 128) / 255
    assert float(noise.std()) == pytest.approx(deviation, rel=0.02)
    assert abs(float(noise.mean())) < 4 * deviation / noise.numel() ** 0.5


def test_noise_is_cut_at_black_and_white() -> None:
    white = gaussian_noise(torch.full((4, 3, 32, 32), 255, dtype=torch.uint8), 5, seeded())
    assert int(white.min()) > 100
    assert float((white == 255).float().mean()) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("severity", "sigma"), [(1, 0.4), (2, 0.6), (3, 0.7), (4, 0.8), (5, 1.0)])
def test_blur_is_scipys_gaussian_filter(images: Tensor, severity: int, sigma: float) -> None:
    filters = importlib.import_module("scipy.ndimage")
    want = filters.gaussian_filter(
        images.numpy().astype(np.float64), (0, 0, sigma, sigma), mode="nearest", truncate=4.0
    )
    got = gaussian_blur(images, severity).numpy()
    assert np.abs(got - want).max() < 0.501  # no further than rounding


def test_blur_leaves_one_colour_alone() -> None:
    grey = torch.full((1, 3, 32, 32), 77, dtype=torch.uint8)
    assert torch.equal(gaussian_blur(grey, 5), grey)


def test_large_sets_are_processed_in_parts(monkeypatch: pytest.MonkeyPatch, images: Tensor) -> None:
    whole = gaussian_blur(images, 3)
    monkeypatch.setattr(corruptions, "CHUNK", 3)
    assert torch.equal(gaussian_blur(images, 3), whole)
    assert gaussian_noise(images, 3).shape == images.shape


@pytest.mark.parametrize(("severity", "quality"), [(1, 80), (2, 65), (3, 58), (4, 50), (5, 40)])
def test_jpeg_is_pillows_at_the_published_quality(
    monkeypatch: pytest.MonkeyPatch, images: Tensor, severity: int, quality: int
) -> None:
    image = importlib.import_module("PIL.Image")
    asked: list[int] = []
    save = image.Image.save

    def watched(self: object, *args: object, **settings: int) -> None:
        asked.append(settings["quality"])
        save(self, *args, **settings)

    monkeypatch.setattr(image.Image, "save", watched)
    out = jpeg(images, severity)
    assert asked == [quality] * len(images)
    assert 0 < distance(out, images) < 20  # worse, and still the same picture in the same colours


def test_jpeg_without_pillow_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, images: Tensor) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(DropoutError, match="jpeg needs Pillow; install it with pip install pillow"):
        jpeg(images, 1)


@pytest.mark.parametrize("severity", [0, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_severity_goes_from_one_to_five(images: Tensor, kind: str, severity: int) -> None:
    with pytest.raises(DropoutError, match=f"severity: want 1 to 5, got {severity}"):
        corrupt(images, kind, severity)


def test_unknown_kind_lists_the_known(images: Tensor) -> None:
    with pytest.raises(DropoutError, match="kind: want one of gaussian_noise, gaussian_blur, jpeg, got 'fog'"):
        corrupt(images, "fog", 1)
