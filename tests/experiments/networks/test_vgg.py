"""VGG has torchvision's layers and names, takes its dropout from outside, and says which weight does not fit."""

from copy import deepcopy
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from experiments.networks import VGG
from lbdrop import DropoutError, LearnableDropout, predict
from lbdrop.sites.graph import neighbours

# torchvision 0.2x: sum(p.numel() for p in vggNN().parameters()).
PARAMETERS = {11: 132_863_336, 13: 133_047_848, 16: 138_357_544, 19: 143_667_240}
# The places of the convolutions in torchvision's vgg19().features.
CONVOLUTIONS_19 = (0, 2, 5, 7, 10, 12, 14, 16, 19, 21, 23, 25, 28, 30, 32, 34)
CHANNELS_19 = (64, 64, 128, 128, *[256] * 4, *[512] * 8)


def small(**settings: object) -> VGG:
    if not settings:
        return deepcopy(plain())  # several times faster than drawing nine million weights
    return VGG(**({"depth": 11, "classes": 10, "width": 8, "pool": 1} | settings))  # pyright: ignore[reportArgumentType]


@cache
def plain() -> VGG:
    return small(classes=10)


def torchvision_state(model: VGG) -> dict[str, Tensor]:
    """A state dict with the names of torchvision's file: no ``pre``."""
    return {name: torch.rand_like(value) for name, value in model.state_dict().items() if not name.startswith("pre.")}


def paper_arrays(model: VGG, blocks: tuple[int, ...] = (1, 1, 2, 2, 2)) -> dict[str, np.ndarray]:
    names = [f"conv{b}_{i}" for b, n in enumerate(blocks, 1) for i in range(1, n + 1)]
    layers = [m for m in model.features if isinstance(m, nn.Conv2d)]
    arrays = {"pre.weight": np.eye(3, dtype=np.float16)[::-1, :, None, None] * 255, "pre.bias": np.ones(3, np.float32)}
    for name, layer in zip(names, layers, strict=True):
        arrays[f"{name}.weight"] = torch.rand_like(layer.weight).numpy().astype(np.float16)
        arrays[f"{name}.bias"] = torch.rand(layer.out_channels).numpy()
    return arrays


def unchanged(model: VGG, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def copied(model: VGG) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


# ------------------------------------------------------------------------------------------------------------ layers


@pytest.mark.parametrize("depth", PARAMETERS)
def test_parameter_counts_are_torchvisions(depth: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in VGG(depth).parameters()) == PARAMETERS[depth]


def test_names_and_shapes_are_torchvisions() -> None:
    with torch.device("meta"):
        shapes = {name: tuple(p.shape) for name, p in VGG(19).named_parameters()}
    want, before = {}, 3
    for place, channels in zip(CONVOLUTIONS_19, CHANNELS_19, strict=True):
        want |= {f"features.{place}.weight": (channels, before, 3, 3), f"features.{place}.bias": (channels,)}
        before = channels
    for place, shape in ((0, (4096, 25088)), (3, (4096, 4096)), (6, (1000, 4096))):
        want |= {f"classifier.{place}.weight": shape, f"classifier.{place}.bias": shape[:1]}
    assert shapes == want


def test_dropout_factory_is_called_twice_with_the_classifiers_width() -> None:
    made: list[int] = []

    def factory(channels: int) -> nn.Module:
        made.append(channels)
        return nn.Dropout(0.3)

    with torch.device("meta"):
        model = VGG(19, dropout=factory)
    assert made == [4096, 4096]
    assert [name for name, m in model.named_modules() if isinstance(m, nn.Dropout)] == ["classifier.2", "classifier.5"]


def test_dropout_rate_defaults_to_one_half() -> None:
    assert [m.p for m in small().modules() if isinstance(m, nn.Dropout)] == [0.5, 0.5]


@pytest.mark.parametrize(("size", "pool"), [(32, 1), (32, 7), (48, 2), (64, 2)])
def test_image_sizes_and_pools_combine_freely(size: int, pool: int) -> None:
    model = small(pool=pool).eval()
    x = torch.rand(2, 3, size, size + 3)
    assert model.trunk(x).shape == (2, 512 * pool * pool)
    assert torch.equal(model(x), model.classifier(model.trunk(x)))
    assert model(x).shape == (2, 10)


def test_starting_weights_have_the_spread_of_he_and_follow_the_generator() -> None:
    model, again = (small(generator=torch.Generator().manual_seed(3), width=64) for _ in range(2))
    other = small(generator=torch.Generator().manual_seed(4), width=64)
    for m in (*model.features, *model.classifier):
        if isinstance(m, nn.Conv2d):
            assert float(m.weight.detach().std()) == pytest.approx((2 / (9 * m.out_channels)) ** 0.5, rel=0.1)
        if isinstance(m, nn.Linear):
            assert float(m.weight.detach().std()) == pytest.approx(0.01, rel=0.1)
        if isinstance(m, nn.Conv2d | nn.Linear):
            assert not m.bias.any()
    assert unchanged(model, again.state_dict())
    assert not unchanged(model, other.state_dict())


def test_input_is_normalised_by_imagenets_statistics() -> None:
    x = torch.tensor([0.485, 0.456, 0.406 + 0.225])[None, :, None, None].expand(1, 3, 32, 32)
    assert torch.allclose(small().pre(x).mean((0, 2, 3)), torch.tensor([0.0, 0.0, 1.0]), atol=1e-6)


def test_pre_is_not_trained() -> None:
    assert not [name for name, _ in small().named_parameters() if name.startswith("pre")]


def test_learned_dropouts_find_their_neighbours_and_predict() -> None:
    model = small(dropout=LearnableDropout)
    found = neighbours(model)
    assert found["classifier.2"].consumers == ["classifier.3"]
    assert found["classifier.5"].consumers == ["classifier.6"]
    assert predict(model, torch.rand(2, 3, 32, 32), samples=3).mean.shape == (2, 10)


# ----------------------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
def test_state_dict_file_is_loaded_whole(tmp_path: Path, suffix: str) -> None:
    model, path = small(), tmp_path / f"vgg11{suffix}"
    state = torchvision_state(model)
    if suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file(state, path)
    else:
        torch.save(state, path)
    assert model.load(path) is model
    assert all(torch.equal(model.state_dict()[name], value) for name, value in state.items())


def test_torchvisions_state_dict_loads_strictly_by_torchs_own_call() -> None:
    model = small()
    model.load_state_dict(torchvision_state(model))


def test_trained_model_loads_with_its_rates_and_its_pre(tmp_path: Path) -> None:
    model = small(dropout=LearnableDropout)
    model.pre.weight.mul_(255)
    torch.save(model.state_dict(), tmp_path / "trained.pt")
    again = small(dropout=lambda units: LearnableDropout(units, rate=0.2)).load(tmp_path / "trained.pt")
    assert unchanged(again, model.state_dict())


def test_convolutions_in_npz_bring_their_own_pre_and_leave_the_classifier(tmp_path: Path) -> None:
    model = small()
    before, arrays = copied(model), paper_arrays(model)
    np.savez(tmp_path / "conv.npz", **arrays)
    model.load(tmp_path / "conv.npz")
    red = torch.zeros(1, 3, 32, 32)
    red[:, 0] = 1
    assert model.pre(red)[0, :, 0, 0].tolist() == [1, 1, 256]
    # VGG11: conv1_1 is features.0, conv3_2 features.8, conv5_2 features.18.
    for name, place in (("conv1_1", 0), ("conv3_2", 8), ("conv5_2", 18)):
        layer = model.features[place]
        assert isinstance(layer, nn.Conv2d)
        assert np.array_equal(layer.weight.detach().numpy(), arrays[f"{name}.weight"].astype(np.float32))
        assert np.array_equal(layer.bias.detach().numpy(), arrays[f"{name}.bias"])
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items() if n.startswith("classifier"))


def test_torchvisions_weights_after_npz_bring_imagenets_pre_back(tmp_path: Path) -> None:
    model = small()
    np.savez(tmp_path / "conv.npz", **paper_arrays(model))
    torch.save(torchvision_state(model), tmp_path / "vgg.pth")
    model.load(tmp_path / "conv.npz").load(tmp_path / "vgg.pth")
    assert torch.equal(model.pre.weight, small().pre.weight)


def test_fresh_layers_stay_as_they_are(tmp_path: Path) -> None:
    model = small()
    before = copied(model)
    torch.save(torchvision_state(small(classes=1000)), tmp_path / "vgg.pth")
    model.load(tmp_path / "vgg.pth", fresh="classifier.6")
    same = {name for name, value in model.state_dict().items() if torch.equal(value, before[name])}
    assert same == {"pre.weight", "pre.bias", "classifier.6.weight", "classifier.6.bias"}


def test_pre_can_stay_too(tmp_path: Path) -> None:
    model = small()
    np.savez(tmp_path / "conv.npz", **paper_arrays(model))
    torch.save(torchvision_state(model), tmp_path / "vgg.pth")
    model.load(tmp_path / "conv.npz").load(tmp_path / "vgg.pth", fresh=["pre"])
    assert model.pre.bias.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"classes": 1000}, r"vgg.pth: classifier.6.weight: want shape \(10, 8\), got \(1000, 8\); pass fresh='classifier.6'"),
        ({"width": 9}, r"classifier.0.weight: want shape \(8, 512\), got \(9, 512\); pass fresh='classifier'"),
        ({"pool": 2}, r"classifier.0.weight: want shape \(8, 512\), got \(8, 2048\); pass fresh='classifier'"),
        ({"depth": 13}, r"features.3.weight: want shape \(128, 64, 3, 3\), got nothing.*build VGG\(13\)"),
    ],
)  # fmt: skip
def test_file_of_another_network_is_an_error_that_names_the_layer(
    tmp_path: Path, settings: dict[str, int], words: str
) -> None:
    torch.save(torchvision_state(small(**settings)), tmp_path / "vgg.pth")
    model = small()
    before = copied(model)
    with pytest.raises(DropoutError, match=words):
        model.load(tmp_path / "vgg.pth")
    assert unchanged(model, before)


def test_missing_unknown_and_broken_weights_are_named(tmp_path: Path) -> None:
    model, path = small(), tmp_path / "vgg.pth"
    state = torchvision_state(model)
    for change, words in (
        (
            {"features.1.weight": torch.ones(64)},
            r"features.1.weight: want no such layer in VGG11, got shape \(64,\).*without batch",
        ),
        ({"features.0.bias": torch.full((64,), torch.nan)}, "features.0.bias: want finite numbers"),
    ):
        torch.save(state | change, path)
        with pytest.raises(DropoutError, match=words):
            model.load(path)
    del state["features.0.bias"]
    torch.save(state, path)
    with pytest.raises(DropoutError, match=r"features.0.bias: want shape \(64,\), got nothing of that name"):
        model.load(path)


def test_npz_of_another_network_is_an_error_that_names_the_array(tmp_path: Path) -> None:
    model, path = small(), tmp_path / "conv.npz"
    arrays, before = paper_arrays(model), copied(model)
    narrow = arrays | {"conv2_1.weight": np.zeros((128, 32, 3, 3), np.float16)}
    extra = arrays | {"conv1_2.weight": np.zeros((64, 64, 3, 3), np.float16)}
    cases = (
        (narrow, r"features.3.weight: want shape \(128, 64, 3, 3\), got \(128, 32, 3, 3\)"),
        (extra, "conv1_2.weight: want no such array for VGG11"),
        ({k: v for k, v in arrays.items() if k != "pre.bias"}, "pre.bias: want this array, got only conv1_1"),
    )
    for wrong, words in cases:
        np.savez(path, **wrong)
        with pytest.raises(DropoutError, match=words):
            model.load(path)
    np.savez(path, **arrays)
    with pytest.raises(DropoutError, match=r"conv1_2.weight: want this array.*build VGG\(11\)"), torch.device("meta"):
        VGG(19).load(path)
    assert unchanged(model, before)


class Malicious:
    def __reduce__(self) -> tuple[object, ...]:
        return (exec, ("raise SystemExit",))


@pytest.mark.parametrize("name", ["vgg.pth", "vgg.npz", "vgg.safetensors"])
def test_unreadable_file_is_an_error_with_its_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(DropoutError, match=f"{name}: want a file of weights, got none there"):
        small().load(path)
    for content in (b"", b"not weights at all", b"PK\x03\x04 cut short"):
        path.write_bytes(content)
        with pytest.raises(DropoutError, match=f"{name}: want .* fetch it again"):
            small().load(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (Malicious(), "want a state dict of tensors"),
        ([1, 2], "want a mapping of names to tensors, got list"),
        ({"state_dict": {}}, "got a mapping with state_dict"),
    ],
)
def test_state_dict_file_may_hold_tensors_only(tmp_path: Path, content: object, words: str) -> None:
    torch.save(content, tmp_path / "vgg.pth")
    with pytest.raises(DropoutError, match=words):
        small().load(tmp_path / "vgg.pth")


def test_npz_with_objects_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "conv.npz", **{"pre.weight": np.array([Malicious()], dtype=object)})
    with pytest.raises(DropoutError, match="want an .npz of number arrays"):
        small().load(tmp_path / "conv.npz")


# ----------------------------------------------------------------------------------------------------- user mistakes


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"depth": 18}, "depth: want one of 11, 13, 16, 19, got 18"),
        ({"classes": 0}, "classes: want at least 1, got 0"),
        ({"dropout": nn.Dropout(0.1)}, "dropout: want a function from the number of units to a layer, got the layer"),
    ],
)
def test_wrong_settings_are_errors_that_say_what_is_wanted(settings: dict[str, object], words: str) -> None:
    with pytest.raises(DropoutError, match=words):
        small(**settings)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (torch.rand(1, 3, 31, 40), r"sides of at least 32, got \(1, 3, 31, 40\)"),
        (torch.rand(1, 1, 32, 32), r"want shape \(batch, 3"),
        (torch.rand(3, 32, 32), r"want shape \(batch, 3"),
        (
            torch.zeros(1, 3, 32, 32, dtype=torch.uint8),
            "want floating point in .0, 1., got torch.uint8; divide bytes by 255",
        ),
    ],
)
def test_wrong_images_are_errors_that_say_what_is_wanted(images: Tensor, words: str) -> None:
    with pytest.raises(DropoutError, match=words):
        small()(images)


def test_fresh_must_name_a_layer() -> None:
    with pytest.raises(DropoutError, match="fresh: no layer 'classifier.7' in VGG11"):
        small().load("unread.pth", fresh="classifier.7")
