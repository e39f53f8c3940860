r"""The recommender's model: a variational autoencoder of sparse rows whose input dropout has learned rates.

$$ \mathcal{L} = -\frac1N \sum_i \mathbb{E}\Big[\log p(x_i \mid \eta) + \beta\Big(\log p(\eta)
   - \log \frac{1}{V+1}\sum_{v=0}^{V} q(\eta \mid x_i, z_i^{(v)})\Big)\Big],
   \qquad \eta \sim q(\eta \mid x_i, z_i^{(0)}), \quad z_i^{(v)} \sim \mathrm{Ber}(\sigma(\alpha)) $$

With $V = 0$, a Gaussian posterior and a standard normal prior the KL has its closed form. DAE, VAE and SIVAE are settings
of this one class (:mod:`lbdrop.recommend.model.settings`). It gives one loss per user; masks, and the gradients of their rates,
are those of any model (:mod:`lbdrop.recommend.train.row_objective`). All $V+1$ masks of a row are one draw for an estimator.

Boluki et al., Learnable Bernoulli Dropout for Bayesian Deep Learning, AISTATS 2020, equation 8; Yin & Zhou, SIVI, ICML 2018.
"""

import copy
import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, Num
from scipy.sparse import csr_array
from torch import Tensor, nn

from lbdrop import masks
from lbdrop._torch import inside_transform
from lbdrop.errors import DropoutError
from lbdrop.recommend.data.rows import Batch, Rows
from lbdrop.recommend.model.chunked_loss import chunk_width, chunked_multinomial_nll
from lbdrop.recommend.model.latent import Latent
from lbdrop.recommend.model.likelihoods import logistic_nll, multinomial_nll
from lbdrop.recommend.model.networks import Decoder, Encoder, aligned_width
from lbdrop.recommend.model.row_dropout import inverse_length, on_rows, plain_values, row_dropout
from lbdrop.recommend.model.settings import Settings

__all__ = ["VAE", "UserLosses"]


class UserLosses(NamedTuple):
    """A value of each user, under one mask."""

    total: Float[Tensor, "users"]
    """What training minimises, weighted so that the mean over users is that of the batch."""
    nll: Float[Tensor, "users"]
    kl: Float[Tensor, "users"]
    """The latent's, before its weight."""


class VAE(nn.Module):
    """Any of the paper's autoencoders, by its settings.

    Args:
        items: items of the catalogue.
        settings: what the model is; see :data:`lbdrop.recommend.model.settings.METHODS`.
        users: training users, if each has a vector (CDAE).

    Example:
        >>> from lbdrop.recommend.model.settings import method
        >>> rows = Rows.from_csr(csr_array([[1, 0, 1], [0, 1, 1]]))
        >>> model = VAE(3, method("sivae-lbd", hidden=8, latent=2))
        >>> model.losses(rows.batch([0, 1]), beta=0.2).total.shape
        torch.Size([2])
        >>> model.scores(rows.batch([0, 1]), samples=10).shape
        torch.Size([2, 3])
        >>> likes = lbdrop.predict(model, torch.arange(2), forward=lambda model, users: model(rows.batch(users)))
        >>> likes.mutual_information.shape
        torch.Size([2])
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
        self.masks = row_dropout(items, settings)
        self.encoder = Encoder(items, settings, users)
        self.latent = Latent(items, settings, self.encoder)
        self.decoder = Decoder(items, settings)
        self.dropping = True

    # ------------------------------------------------------------------------------------------------------- training

    def losses(self, batch: Batch, beta: float | Tensor, generator: torch.Generator | None = None) -> UserLosses:
        """Each user's loss under the mask of the active context, or one that the dropout draws.

        Args:
            batch: training rows.
            beta: weight of the latent's KL; the settings' ``gamma`` replaces it, if set.
            generator: draws the latent noise.
        """
        if inside_transform():
            raise NotImplementedError("rows: want masks one after the other, since sums over a row have no lanes")
        s = self.settings
        noise, density = self.latent_noise(batch, generator), self.latent.density(self.encoder, batch)
        # The first set of masks is the user's own, the others are extra.
        q = self.encoder(self.values(batch, s.extra_masks + 1), batch, known_users=True)
        if noise is None:
            nll = self.decoded_nll(q.hidden[0], batch)
            kl = torch.zeros_like(nll)
        else:
            eta, kl = self.latent.sample(q, noise, density)
            nll = self.decoded_nll(eta, batch)
        total = nll + (beta if s.gamma is None else s.gamma * batch.counts) * kl
        if s.l2:
            total = total + s.l2 * torch.stack([w.pow(2).sum() for w in self._matrices()]).sum()
        return UserLosses(total if batch.share is None else total * (batch.share * batch.size), nll, kl)

    def values(self, batch: Batch, sets: int = 1) -> Float[Tensor, "sets entries"]:
        """The network's input at every entry, under the mask of the active context."""
        s = self.settings
        x = plain_values(batch, "none" if s.normalise == "after" else s.normalise, self._dtype).expand(sets, -1)
        if self.dropping:
            with on_rows(batch):
                x = self.masks(x)
        if s.normalise != "after":
            return x
        squares = x.new_zeros(sets, batch.size).index_add(1, batch.user, x.pow(2))
        return x * inverse_length(squares, batch)

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
        self.dropping = part != "decoder"

    def end_of_epoch(self) -> None:
        """Update between epochs: the composite prior copies the current encoder."""
        self.latent.prior.end_of_epoch(self.encoder)

    # ----------------------------------------------------------------------------------------------------- prediction

    def forward(self, batch: Batch, known_users: bool = False) -> Float[Tensor, "users items"]:
        """A logit for every item at the mean latent vector, under the mask of the active context."""
        return self.decoder(self.latent.mean(self.encoder(self.values(batch), batch, known_users)))

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
        if samples == 0 or self.settings.dropout == "none":
            with masks.deterministic(self):
                return self.log_probabilities(self(batch, known_users))
        with masks.drawn(self, generator):
            total = self.log_probabilities(self(batch, known_users))
            for _ in range(samples - 1):
                total = torch.logaddexp(total, self.log_probabilities(self(batch, known_users)))
        return total - math.log(samples)

    def plain_scores(self, batch: Batch) -> Float[Tensor, "users items"]:
        """Log probabilities without masks."""
        return self.scores(batch, samples=0)

    def masked_scores(self, batch: Batch, mask: Float[Tensor, "entries"]) -> Float[Tensor, "users items"]:
        """Log probabilities under a mask with one value for each entry of the batch."""
        with masks.fixed(self, {"masks": mask}):
            return self.log_probabilities(self(batch))

    def shared_masks(self, samples: int, seed: int) -> Num[Tensor, "samples items"] | None:
        """Masks of a whole catalogue that all users share; ``None`` without samples or for a model without masks."""
        if samples == 0 or self.settings.dropout == "none":
            return None
        everything = Rows.from_csr(csr_array(torch.ones(1, self.items).numpy())).batch([0])
        # Drawn on the host, so that every device has the same masks.
        layer, generator = copy.deepcopy(self.masks).cpu(), torch.Generator().manual_seed(seed)
        with on_rows(everything), torch.no_grad():
            drawn = layer.draw(samples, (self.items,), torch.zeros(()), generator)
        return drawn.to(self.masks.logit.device)

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
        return self.masks.keep.detach()

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
