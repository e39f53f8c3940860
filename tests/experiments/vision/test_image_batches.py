"""A split holds every image once, batches give each with its label, and augmentation follows the generator."""

from itertools import chain

import pytest
import torch
from torch import Tensor

from experiments.vision import Batches, Images
from experiments.vision.batches import as_input, crop_and_flip
from lbdrop import DropoutError

# ------------------------------------------------------------------------------------------------------------ splitting


def numbered(n: int) -> tuple[Tensor, Tensor]:
    """Image i has the colour i everywhere, so that a batch tells which images it holds."""
    return torch.arange(n, dtype=torch.uint8)[:, None, None, None].expand(n, 3, 32, 32).contiguous(), torch.arange(
        n
    ) % 10


def test_split_holds_every_train_image_once_and_follows_the_seed() -> None:
    x, y = numbered(50)
    images = Images(x, y, x[:7], y[:7])
    split, again, other = images.split(12, seed=1), images.split(12, seed=1), images.split(12, seed=2)
    assert split.validation.shape == (12, 3, 32, 32)
    assert sorted([*split.train[:, 0, 0, 0].tolist(), *split.validation[:, 0, 0, 0].tolist()]) == list(range(50))
    assert split.train_labels.tolist() == [i % 10 for i in split.train[:, 0, 0, 0].tolist()]
    assert split.validation_labels.tolist() == [i % 10 for i in split.validation[:, 0, 0, 0].tolist()]
    assert torch.equal(split.validation, again.validation)
    assert not torch.equal(split.validation, other.validation)
    assert torch.equal(split.test, images.test)
    for wrong in (0, 50):
        with pytest.raises(DropoutError, match=f"validation: want 1 to 49 of the train images, got {wrong}"):
            images.split(wrong)


def test_images_move_with_all_their_tensors() -> None:
    x, y = numbered(5)
    images = Images(x, y, x[:2], y[:2])
    assert images.to("meta").train_labels.device.type == "meta"
    moved = images.split(2).to(torch.device("meta"))
    assert {t.device.type for t in (moved.train, moved.validation, moved.validation_labels, moved.test)} == {"meta"}
    assert moved.classes == images.classes


# -------------------------------------------------------------------------------------------------------------- batches


def seen(batches: Batches) -> list[list[int]]:
    return [(x[:, 0, 16, 16] * 255).round().int().tolist() for x, _ in batches]


def test_evaluation_gives_every_image_in_order_and_the_rest_at_the_end() -> None:
    batches = Batches(*numbered(50), 16)
    assert len(batches) == 4
    assert list(chain(*seen(batches))) == list(range(50))
    assert [len(batch) for batch in seen(batches)] == [16, 16, 16, 2]


def test_training_gives_every_image_at_most_once_in_full_batches_and_a_new_order() -> None:
    batches = Batches(*numbered(50), 16, train=True, generator=torch.Generator().manual_seed(0))
    first, second = seen(batches), seen(batches)
    assert len(batches) == len(first) == 3
    assert [len(batch) for batch in first] == [16, 16, 16]
    assert len(set(chain(*first))) == 48
    assert first != second


def test_training_gives_every_image_once_where_the_batch_divides() -> None:
    assert sorted(chain(*seen(Batches(*numbered(48), 16, train=True)))) == list(range(48))


def test_labels_stay_with_their_images() -> None:
    for x, y in Batches(*numbered(50), 8, train=True, augment=True):
        assert y.tolist() == [i % 10 for i in (x[:, 0, 16, 16] * 255).round().int().tolist()]


def test_batches_lie_between_0_and_1_and_have_the_given_size() -> None:
    x, y = next(iter(Batches(torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8), torch.arange(4), 4, 48)))
    assert x.shape == (4, 3, 48, 48)
    assert x.dtype == torch.float32
    assert 0 <= float(x.min()) < 0.1 < 0.9 < float(x.max()) <= 1
    assert y.dtype == torch.int64


@pytest.mark.parametrize("size", [16, 32, 64, 224])
def test_resizing_keeps_the_mean_colour(size: int) -> None:
    x = torch.arange(32, dtype=torch.uint8).repeat(1, 3, 32, 1)
    assert as_input(x, size).shape == (1, 3, size, size)
    assert float(as_input(x, size).mean() * 255) == pytest.approx(15.5, abs=1e-3)


def test_augmentation_changes_images_and_follows_the_generator() -> None:
    x = torch.randint(0, 256, (32, 3, 32, 32), dtype=torch.uint8)

    def epoch(seed: int, augment: bool) -> Tensor:
        g = torch.Generator().manual_seed(seed)
        batches = Batches(x, torch.arange(32), 16, train=True, augment=augment, generator=g)
        return torch.cat([images[labels.argsort()] for images, labels in batches])

    assert torch.equal(epoch(0, True), epoch(0, True))
    assert not torch.equal(epoch(0, True), epoch(1, True))
    changed = (epoch(0, True) != epoch(0, False)).flatten(1).any(1)
    assert int(changed.sum()) >= 28  # one in 162 stays as it is


def test_cropping_moves_and_mirrors_as_given() -> None:
    x = torch.randint(1, 256, (4, 3, 32, 32), dtype=torch.uint8)
    shift = torch.tensor([[0, 0], [0, 0], [4, -2], [-1, 3]])
    out = crop_and_flip(x, shift, torch.tensor([False, True, False, True]))
    assert torch.equal(out[0], x[0])
    assert torch.equal(out[1], x[1].flip(-1))
    assert torch.equal(out[2, :, 4:, :-2], x[2, :, :-4, 2:])
    assert not out[2, :, :4].any()
    assert not out[2, :, :, -2:].any()
    assert torch.equal(out[3].flip(-1)[:, :-1, 3:], x[3, :, 1:, :-3])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch": 0}, "batch and size: want at least 1, got 0 and None"),
        ({"size": 0}, "batch and size: want at least 1, got 64 and 0"),
        ({"batch": 11, "train": True}, "images: want at least 11, got 10"),
        ({"augment": True}, "augment: want train=True with it"),
    ],
)
def test_wrong_batches_are_errors_that_say_what_is_wanted(settings: dict[str, int], words: str) -> None:
    with pytest.raises(DropoutError, match=words):
        Batches(*numbered(10), **settings)  # pyright: ignore[reportArgumentType]
