"""The recommender's benchmark measures what it says."""

import numpy as np
import torch
from scipy.sparse import csr_array

from benchmarks.recommender import fitted, recommendations, to_file
from lbdrop.recommend import VAE, method


def test_lists_are_timed_in_memory_without_masks_and_to_a_file_with_masks() -> None:
    likes = csr_array((np.random.default_rng(0).random((40, 20)) < 0.3).astype(np.float32))
    model = VAE(20, method("sivae-lbd", hidden=8, latent=4, samples=3))
    found = to_file(model, likes, k=5)
    assert (found["users"], found["rows"], found["samples"], found["k"]) == (40, 200, 3, 5)
    assert min(found["seconds"], found["users_per_second"], found["file_bytes"]) > 0
    assert "uncertainty" in fitted(model, likes).recommend([0], k=2).columns
    listing = recommendations(model, likes, torch.device("cpu"), k=5)
    assert set(listing) == {"k", "users", "seconds", "users_per_second", "peak_bytes"}
    assert listing["users"] == 40
