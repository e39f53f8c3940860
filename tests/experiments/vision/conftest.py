"""Thirteen random images and their labels, for the small files of every format of CIFAR-10."""

import numpy as np
import pytest
from helpers.cifar10_files import TEST, TRAIN


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (TRAIN + TEST, 3072), dtype=np.uint8)


@pytest.fixture
def labels() -> np.ndarray:
    return np.arange(TRAIN + TEST) % 10
