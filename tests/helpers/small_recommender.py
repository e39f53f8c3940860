"""A recommender of twelve items that trains in a moment."""

from typing import Any

import torch
from scipy.sparse import csr_array

from lbdrop.recommend.model.settings import method
from lbdrop.recommend.model.vae import VAE


def likes(users: int = 40, items: int = 12) -> csr_array:
    return csr_array((torch.rand(users, items, generator=torch.Generator().manual_seed(2)) < 0.4).numpy())


def recommender(name: str = "sivae-lbd", **changes: Any) -> VAE:
    torch.manual_seed(3)
    return VAE(12, method(name, **{"hidden": 6, "latent": 3, "batch": 8, "epochs": 3, **changes}))
