"""Models of six items, small enough that every mask of a user's row can be enumerated."""

import torch
from scipy.sparse import csr_array
from torch import Tensor

from lbdrop.recommend.data.rows import Batch, Rows
from lbdrop.recommend.model.settings import method
from lbdrop.recommend.model.vae import VAE

ITEMS, HIDDEN, LATENT = 6, 5, 2
TWO_USERS = [[1, 0, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0]]  # two items each; nobody has the last two items
BETA = 0.7


def batch_of(matrix: list[list[int]]) -> Batch:
    return Rows.from_csr(csr_array(matrix)).batch(range(len(matrix)))


def random_batch(users: int = 12, seed: int = 0) -> Batch:
    likes = torch.rand(users, ITEMS, generator=torch.Generator().manual_seed(seed)) < 0.5
    return batch_of(likes.int().tolist())


def small(name: str, **changes) -> VAE:
    sizes = {"hidden": HIDDEN, "latent": LATENT, "pseudo_inputs": 4, "flow_hidden": 7}
    return VAE(ITEMS, method(name, **(sizes | changes)), users=12)


def perturbed(model: VAE) -> VAE:
    """Weights large enough that masks matter, rates that differ."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.8 * torch.randn(p.shape, generator=generator))
    return model


def dense_values(mask: Tensor, row: Tensor, keep: Tensor, normalise: str) -> Tensor:
    """Masks (n, items) of a row as the encoder sees them."""
    if normalise == "before":
        return mask * row / row.norm() / keep
    masked = mask * row
    return masked / masked.norm(dim=-1, keepdim=True).clamp(min=1e-9)
