r"""The recommender's model: a variational autoencoder of sparse rows whose input dropout has learned rates.

$$ \mathcal{L} = -\frac1N \sum_i \mathbb{E}\Big[\log p(x_i \mid \eta) + \beta\Big(\log p(\eta)
   - \log \frac{1}{V+1}\sum_{v=0}^{V} q(\eta \mid x_i, z_i^{(v)})\Big)\Big],
   \qquad \eta \sim q(\eta \mid x_i, z_i^{(0)}), \quad z_i^{(v)} \sim \mathrm{Ber}(\sigma(\alpha)) $$

With $V = 0$, a Gaussian posterior and a standard normal prior the KL has its closed form. DAE, VAE and SIVAE are settings
of this one class (:mod:`lbdrop.recommend.model.settings`). All $V+1$ masks of a row are draws at the same $\alpha$, so they are
mirrored together: the antithetic pair is of the whole set, with the same Gaussian noise, and each mask adds its part.

Boluki et al., Learnable Bernoulli Dropout for Bayesian Deep Learning, AISTATS 2020, equation 8; Yin & Zhou, SIVI, ICML 2018.
"""

import math
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, Num
from torch import Tensor, nn

from lbdrop.errors import DropoutError
from lbdrop.estimators import antithetic, arm, disarm
from lbdrop.recommend.data.rows import Batch
from lbdrop.recommend.model.chunked_loss import chunk_width, chunked_multinomial_nll
from lbdrop.recommend.model.latent import Latent
from lbdrop.recommend.model.latent_priors import Density
from lbdrop.recommend.model.likelihoods import logistic_nll, multinomial_nll
from lbdrop.recommend.model.networks import Decoder, Encoder, aligned_width
from lbdrop.recommend.model.row_masks import RowMasks, row_values
from lbdrop.recommend.model.settings import Settings

__all__ = ["VAE", "Losses"]


class Losses(NamedTuple):
    """One step's losses, each a mean over users; ``total`` gives the gradients of weights and rates."""

    total: Float[Tensor, ""]
    nll: Float[Tensor, ""]
    kl: Float[Tensor, ""]
    """The latent's, before its weight."""
    mask_kl: Float[Tensor, ""]
    """The masks', before its weight."""


class VAE(nn.Module):
    """Any of the paper's autoencoders, by its settings.

    Args:
        items: items of the catalogue.
        settings: what the model is; see :data:`lbdrop.recommend.model.settings.METHODS`.
        users: training users, if each has a vector (CDAE).

    Example:
        >>> from scipy.sparse import csr_array
        >>> from lbdrop.recommend.data.rows import Rows
        >>> from lbdrop.recommend.model.settings import method
        >>> batch = Rows.from_csr(csr_array([[1, 0, 1], [0, 1, 1]])).batch([0, 1])
        >>> model = VAE(3, method("sivae-lbd", hidden=8, latent=2))
        >>> model.losses(batch, beta=0.2).total.backward()
        >>> model.scores(batch, samples=10).shape
        torch.Size([2, 3])
    """

    averages_masks = True
    """Whether the scores of some masks are their average; otherwise masks only give the uncertainty."""

    def __init__(self, items: int, settings: Settings, users: int = 0):
        super().__init__()
        if items < 1:
            raise DropoutError(f"items: want at least 1, got {items}")
        if settings.user_vectors and users < 1:
            raise DropoutError(f"users: want the number of training users for user_vectors=True, got {users}")
        self.settings, self.items = settings, items
        self.masks = RowMasks(items, settings)
        self.encoder = Encoder(items, settings, users)
        self.latent = Latent(items, settings, self.encoder)
        self.decoder = Decoder(items, settings)
        self.dropping = settings.dropout != "none"

    # ------------------------------------------------------------------------------------------------------- training

    def losses(self, batch: Batch, beta: float | Tensor, generator: torch.Generator | None = None) -> Losses:
        """The loss of a batch; ``total.backward()`` leaves gradients in the weights and in the rates' logits.

        Args:
            batch: training rows.
            beta: weight of the latent's KL; the settings' ``gamma`` replaces it, if set.
            generator: draws masks and latent noise.
        """
        s = self.settings
        logits = self.masks.logits(batch) if self.dropping else None
        noise = self.latent_noise(batch, generator)
        weight = beta if s.gamma is None else s.gamma * batch.counts
        density = self.latent.density(self.encoder, batch)

        def bound(masks: Tensor | None) -> tuple[Tensor, Tensor]:
            values = row_values(masks, logits, batch, s, self._dtype)
            return self._bound(values, batch, noise, density)

        masks = None
        if logits is not None and s.dropout == "learned":
            keep = torch.sigmoid(logits.detach())
            pair = antithetic(keep, 2, (s.extra_masks + 1, len(keep)), generator)
            nll, kl = bound(pair.z[0])
            with torch.set_grad_enabled(s.both and torch.is_grad_enabled()):
                mirrored_nll, mirrored_kl = bound(pair.z[1])
            per_user = torch.stack([nll + weight * kl, mirrored_nll + weight * mirrored_kl])
            total = batch.mean(per_user.mean(0) if s.both else per_user[0])
            f = per_user.detach().index_select(1, batch.user)[:, None]
            each = disarm(pair.z, keep[None], f) if s.estimator == "disarm" else arm(pair.uniforms, f)
            # The value is 0, the gradient is the estimate.
            total = total + ((logits - logits.detach()) * batch.per_entry(each.sum(0))).sum()
        else:
            if logits is not None:
                masks = self.masks.draw(s.extra_masks + 1, logits, generator)
            nll, kl = bound(masks)
            total = batch.mean(nll + weight * kl)
        mask_kl = total.new_zeros(())
        if logits is not None and s.learns_rates:
            mask_kl = batch.per_entry(self.masks.kl(logits)).sum()
            total = total + s.mask_kl * mask_kl if s.mask_kl else total
        if s.l2:
            total = total + s.l2 * torch.stack([w.pow(2).sum() for w in self._matrices()]).sum()
        return Losses(total, batch.mean(nll.detach()), batch.mean(kl.detach()), mask_kl.detach())

    def _bound(
        self, values: Tensor, batch: Batch, noise: Tensor | None, density: Density | None
    ) -> tuple[Float[Tensor, "users"], Float[Tensor, "users"]]:
        """Each user's −log p(x|η) and KL; the first row of ``values`` is the user's own mask, the others are extra."""
        q = self.encoder(values, batch, known_users=True)
        if noise is None:
            nll = self.decoded_nll(q.hidden[0], batch)
            return nll, torch.zeros_like(nll)
        eta, kl = self.latent.sample(q, noise, density)
        return self.decoded_nll(eta, batch), kl

    def decoded_nll(self, eta: Float[Tensor, "users _"], batch: Batch) -> Float[Tensor, "users"]:
        """Each user's −log p(x|η); the logits of a large catalogue are never there all at once."""
        chunk = chunk_width(self.items, batch.size, self.settings.items_at_once)
        if chunk < self.items and self.settings.likelihood == "multinomial":
            out = self.decoder.out
            return chunked_multinomial_nll(self.decoder.hidden(eta), out.weight, out.bias, batch, chunk)
        width = aligned_width(self.items) if eta.is_cuda else self.items
        return self.nll(self.decoder(eta, width), batch)

    def train_only(self, part: Literal["both", "encoder", "decoder"]) -> None:
        """Freeze the other half; the decoder by itself learns without dropout (RecVAE)."""
        self.decoder.requires_grad_(part != "encoder")
        frozen = self._frozen()
        for module in (self.encoder, self.masks, self.latent):
            for p in module.parameters():
                p.requires_grad_(part != "decoder" and id(p) not in frozen)
        self.dropping = self.settings.dropout != "none" and part != "decoder"

    def end_of_epoch(self) -> None:
        """Update between epochs: the composite prior copies the current encoder."""
        self.latent.prior.end_of_epoch(self.encoder)

    def parameter_groups(self, lr: float, rate_lr: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """For an optimiser: weight matrices with decay; biases and similar without; the rates."""
        matrices = self._matrices()
        rates = list(self.masks.parameters())
        taken = {id(p) for p in (*matrices, *rates)}
        rest = [p for p in self.parameters() if id(p) not in taken | self._frozen()]
        groups: list[dict[str, Any]] = [
            {"name": "weights", "params": matrices, "lr": lr, "weight_decay": weight_decay},
            {"name": "others", "params": rest, "lr": lr, "weight_decay": 0.0},
            {"name": "rates", "params": rates, "lr": rate_lr, "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]

    # ----------------------------------------------------------------------------------------------------- prediction

    def forward(
        self,
        batch: Batch,
        values: Float[Tensor, "1 entries"] | None = None,
        known_users: bool = False,
    ) -> Float[Tensor, "users items"]:
        """A logit for every item at the mean latent vector, for the row itself or for other values at its entries."""
        return self.decoder(self.code(batch, values, known_users))

    def code(
        self,
        batch: Batch,
        values: Float[Tensor, "1 entries"] | None = None,
        known_users: bool = False,
    ) -> Float[Tensor, "users _"]:
        """The mean latent vector of each user."""
        if values is None:
            values = row_values(None, None, batch, self.settings, self._dtype)
        return self.latent.mean(self.encoder(values, batch, known_users))

    @torch.no_grad()
    def scores(
        self,
        batch: Batch,
        samples: int | None = None,
        generator: torch.Generator | None = None,
        *,
        known_users: bool = False,
    ) -> Float[Tensor, "users items"]:
        """Log probabilities of the items, averaged as probabilities over ``samples`` masks; 0 runs without masks.

        The default is the settings' number of masks.
        """
        samples = self.settings.samples if samples is None else samples
        if samples < 0:
            raise DropoutError(f"samples: want 0 (no masks) or more, got {samples}")
        if samples == 0 or self.masks.logit is None:
            return self.log_probabilities(self(batch, known_users=known_users))
        total = self._sampled(batch, generator, known_users)
        for _ in range(samples - 1):
            total = torch.logaddexp(total, self._sampled(batch, generator, known_users))
        return total - math.log(samples)

    def plain_scores(self, batch: Batch) -> Float[Tensor, "users items"]:
        """Log probabilities without masks."""
        return self.scores(batch, samples=0)

    def masked_scores(self, batch: Batch, mask: Float[Tensor, "entries"]) -> Float[Tensor, "users items"]:
        """Log probabilities under a mask with one value for each entry of the batch."""
        values = row_values(mask[None], self.masks.logits(batch), batch, self.settings, self._dtype)
        return self.log_probabilities(self(batch, values))

    def shared_masks(self, samples: int, seed: int) -> Num[Tensor, "samples items"] | None:
        """Masks of a whole catalogue that all users share; ``None`` without samples or for a model without masks."""
        if samples == 0 or self.masks.logit is None:
            return None
        logit = self.masks.logit.detach()
        # Drawn on the host, so that every device has the same masks.
        masks = self.masks.draw(samples, logit.cpu().expand(self.items), torch.Generator().manual_seed(seed))
        return masks.to(logit.device)

    def log_probabilities(self, logits: Float[Tensor, "users items"]) -> Float[Tensor, "users items"]:
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.log_softmax(logits, -1) if self.settings.likelihood == "multinomial" else F.logsigmoid(logits)

    def nll(self, logits: Float[Tensor, "users _"], batch: Batch) -> Float[Tensor, "users"]:
        """The negative log-likelihood of each user's items."""
        likelihood = multinomial_nll if self.settings.likelihood == "multinomial" else logistic_nll
        return likelihood(logits, batch)

    @property
    def keep(self) -> Float[Tensor, "*items"]:
        """The keep rates, one per item or one."""
        return self.masks.keep

    def drop_rates(self) -> dict[str, Tensor]:
        """The drop rates of all items, or one, by the name of their column."""
        return {"rate": 1 - self.keep}

    @property
    def item_vectors(self) -> Float[Tensor, "items width"]:
        """Each item's row of the decoder's output layer."""
        return self.decoder.out.weight

    def similarity(self, indices: Int64[Tensor, "n"]) -> Float[Tensor, "n items"]:
        """Cosines of these items' vectors and all items'."""
        vectors = F.normalize(self.item_vectors.detach().float(), dim=1)
        return vectors[indices] @ vectors.T

    # --------------------------------------------------------------------------------------------------------- pieces

    def latent_noise(self, batch: Batch, generator: torch.Generator | None = None) -> Float[Tensor, "users d"] | None:
        """Standard normal noise for every user's latent vector."""
        if not self.settings.variational:
            return None
        return self.latent.noise(batch, self._dtype, generator)

    def _sampled(self, batch: Batch, generator: torch.Generator | None, known_users: bool) -> Tensor:
        logits = self.masks.logits(batch)
        assert logits is not None
        values = row_values(self.masks.draw(1, logits, generator), logits, batch, self.settings, self._dtype)
        return self.log_probabilities(self(batch, values, known_users=known_users))

    def _matrices(self) -> list[nn.Parameter]:
        """The weights of linear layers: not biases, norms, user vectors or pseudo-inputs."""
        frozen = self._frozen()
        named = [(name, p) for name, p in self.named_parameters() if id(p) not in frozen]
        return [p for name, p in named if name.endswith("weight") and p.dim() > 1]

    def _frozen(self) -> set[int]:
        """The composite prior's copy of the encoder is not trained."""
        return {id(p) for p in self.latent.prior.parameters()} if self.settings.prior == "composite" else set()

    @property
    def _dtype(self) -> torch.dtype:
        return self.encoder.table.weight.dtype
