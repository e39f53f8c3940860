"""What one process and two do alike: each function takes its rank and how many ranks there are, and gives tensors back."""

from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import lbdrop
from experiments.rival_rules.masks_around import MasksAround
from experiments.rival_rules.self_tuning import SelfTuning, parameter_groups
from experiments.vision.batches import Batches
from experiments.vision.train import Schedule
from experiments.vision.train import fit as fit_images
from lbdrop import Balanced, LearnableDropout, Objective
from lbdrop.dropout import NoiseLayer
from lbdrop.estimators import Draw, Estimator
from lbdrop.recommend.data.interactions import Interactions
from lbdrop.recommend.data.rows import Rows
from lbdrop.recommend.data.shop import generate_shop
from lbdrop.recommend.data.splits import split_users
from lbdrop.recommend.model.row_dropout import SparseRows
from lbdrop.recommend.model.settings import method
from lbdrop.recommend.model.vae import VAE
from lbdrop.recommend.train import loop
from lbdrop.recommend.train.evaluate import evaluate
from lbdrop.recommend.train.fit import fit as fit_recommender

EXAMPLES = 8
ESTIMATORS = ("arm", "disarm", "rloo-3", "double-cv-4")
SHARED = ("ddp", "fully_shard", "alone")
"""How processes share a model whose rates follow held-out data."""
METHODS = ("sivae-lbd", "vae-drop", "sivae-concrete")
FITS: dict[str, Any] = {
    "exact": ("dae", {"dropout": "none"}),
    "sivae-lbd": ("sivae-lbd", {"epochs": 16}),
    "recvae": ("recvae", {"epochs": 2}),
}
"""Fits of the recommender; the first draws nothing, so any number of processes has to end at the same weights."""


def share(rank: int, ranks: int, of: int = EXAMPLES) -> slice:
    return slice(rank * of // ranks, (rank + 1) * of // ranks)


# ------------------------------------------------------------------------------------------------------------- the core


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 6), nn.Tanh(), LearnableDropout(6, 0.3), nn.Linear(6, 6), nn.Tanh(), LearnableDropout(None, 0.4),
        nn.Linear(6, 3),
    ).double()  # fmt: skip


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(EXAMPLES, 4, dtype=torch.float64, generator=generator), torch.arange(EXAMPLES) % 3


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def sliced(estimator: Estimator, rows: slice) -> Estimator:
    """Draws for all examples, and takes its own: two processes then have the masks that one would have."""

    def draw(keep: Tensor, n: int, shape: Any, generator: torch.Generator | None = None) -> Draw:
        whole = estimator.draw(keep, n, (EXAMPLES, *shape[1:]), generator)
        per_mask = whole.uniforms.dim() > len(shape)
        return Draw(whole.z[:, rows], whole.uniforms[:, rows] if per_mask else whole.uniforms[rows])

    return estimator._replace(draw=draw)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def core_gradients(name: str, rank: int, ranks: int) -> dict[str, Tensor]:
    """Of the paper's bound, by an objective over the wrapped model."""
    model, rows = network(), share(rank, ranks)
    objective = Objective(
        DistributedDataParallel(model) if ranks > 1 else model,
        examples=100,
        estimator=name,
        generator=torch.Generator().manual_seed(2),
    )
    plan = objective.runner.plan
    assert plan is not None
    objective.runner.plan = plan._replace(estimator=sliced(plan.estimator, rows))
    objective(losses, *(each[rows] for each in data())).backward()
    return gradients(model)


def tuned(rank: int, ranks: int, wrapped: bool) -> dict[str, Tensor]:
    """Weights, responses and rates after self-tuning, with the share of the offsets and masks that one process would draw."""
    model, rows = network(), share(rank, ranks)
    generator = torch.Generator().manual_seed(2)
    x, y = data()
    held_out = x.flip(1), y
    rule = SelfTuning(model, [tuple(each[rows] for each in held_out)], steps=60, every=1, generator=generator)
    model.double()  # the responses too
    objective = Objective(model, rule)
    if wrapped:
        objective.model = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(parameter_groups(model, lr=0.3, rate_lr=0.3))
    shift, uniforms = MasksAround.shift, NoiseLayer.uniforms

    def offsets(self: MasksAround, layer: NoiseLayer, examples: int) -> None:
        if self.offsets is None and self.spread:
            whole = torch.randn(EXAMPLES, len(rule.logits), dtype=torch.float64, generator=generator)
            self.offsets = whole[rows].requires_grad_(self.follow)
        shift(self, layer, examples)

    def masks(self: NoiseLayer, shape: Any, *rest: Any) -> Tensor:
        return uniforms(self, (shape[0], EXAMPLES, *shape[2:]), *rest)[:, rows]

    with mock.patch.object(MasksAround, "shift", offsets), mock.patch.object(NoiseLayer, "uniforms", masks):
        for _ in range(40):  # rates move for 24 of them
            optimizer.zero_grad()
            objective(losses, x[rows], y[rows]).backward()
            optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def balanced(rank: int, ranks: int, how: str = "alone") -> dict[str, Tensor]:
    """Weights and rates after some steps of balanced noise, with the share of the masks that one process would draw.

    Each process has a share of the data. The optimiser decays whatever has a gradient.
    """
    model, rows = network(), share(rank, ranks)
    x, y = data()
    generator = torch.Generator().manual_seed(2)
    rule = Balanced(model, [(x[rows].flip(1), y[rows])], steps=60, every=1, generator=generator)
    if how == "fully_shard":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, ignored_params=set(rule.logits))
    objective = Objective(DistributedDataParallel(model) if how == "ddp" else model, rule)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.03, weight_decay=0.1)
    uniforms = NoiseLayer.uniforms

    def masks(self: NoiseLayer, shape: Any, *rest: Any) -> Tensor:
        return uniforms(self, (shape[0], EXAMPLES, *shape[2:]), *rest)[:, rows]

    with mock.patch.object(NoiseLayer, "uniforms", masks):
        for _ in range(40):  # rates move for 24 of them
            optimizer.zero_grad()
            objective(losses, x[rows], y[rows]).backward()
            optimizer.step()
    assert rule.phase == "frozen"
    full = {name: getattr(p, "full_tensor", lambda p=p: p)() for name, p in model.named_parameters()}
    return {name: p.detach().clone() for name, p in full.items()} | {"measurements": rule.measurements.sums[0]}


def released(rank: int, ranks: int) -> dict[str, Tensor]:
    """Rates where held-out examples join training, masks are each process's own, and the model is wrapped as by default."""
    model, rows = network(), share(rank, ranks)
    x, y = data()
    held_out = [(x[rows].flip(1), y[rows])] * 3
    objective = Objective(DistributedDataParallel(model), held_out=held_out, steps=30, examples=EXAMPLES // ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
    for _ in range(30):
        optimizer.zero_grad()
        objective(losses, x[rows], y[rows]).backward()
        optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


# ------------------------------------------------------------------------------------------------------ the recommender


def likes(users: int = EXAMPLES, items: int = 15) -> csr_array:
    generator = torch.Generator().manual_seed(4)
    return csr_array((torch.rand(users, items, generator=generator) < 0.4).numpy())


def recommender_gradients(name: str, rank: int, ranks: int) -> dict[str, Tensor]:
    """Of the autoencoder's bound through Fabric's wrapper, with the noise that one process would draw."""
    torch.manual_seed(5)
    settings = method(name, hidden=8, latent=4, estimator="double-cv-3" if name == "sivae-lbd" else None)
    rows, mine = Rows.from_csr(likes()), share(rank, ranks)
    model = VAE(rows.items, settings).double()
    steps = loop.Loop(model, rows, settings, loop.launch("cpu", "64-true"))
    batch = rows.batch(range(mine.start, mine.stop))
    entries = slice(int(rows.starts[mine.start]), int(rows.starts[mine.stop]))
    generator = torch.Generator().manual_seed(6)

    def uniform(blank: Tensor, **_: Any) -> Tensor:  # what others draw is drawn here too
        whole = torch.rand(*blank.shape[:-1], rows.entries, dtype=blank.dtype, generator=generator)
        return blank.copy_(whole[..., entries])

    def uniforms(self: SparseRows, shape: tuple[int, ...], *_: Any) -> Tensor:
        return uniform(torch.empty(shape, dtype=torch.float64))

    def noise(self: VAE, *_: Any) -> Tensor:
        return torch.randn(EXAMPLES, 4, dtype=torch.float64, generator=generator)[mine]

    with mock.patch.object(Tensor, "uniform_", uniform), mock.patch.object(SparseRows, "uniforms", uniforms), mock.patch.object(VAE, "latent_noise", noise):  # fmt: skip
        steps.fabric.backward(steps.objective(batch, torch.tensor(0.3), None).total)
    return gradients(model)


def shop() -> Any:
    generated = generate_shop(users=400, items=40, groups=4, seed=0)
    return split_users(Interactions.from_frame(generated.interactions), 100)


def recommended(name: str, **options: Any) -> tuple[VAE, Any]:
    """A fit to the generated shop."""
    split, (kind, changes) = shop(), FITS[name]
    torch.manual_seed(7)
    small = {"hidden": 12, "latent": 6, "anneal_steps": 60, "batch": 20, "epochs": 8, "lr": 5e-3}
    model = VAE(split.train.rows.shape[1], method(kind, **small | changes), users=split.train.rows.shape[0])
    options |= {"precision": "64-true"} if name == "exact" else {}
    model = model.double() if name == "exact" else model
    history = fit_recommender(
        model, split.train.rows, split.validation, device="cpu", progress=False, seed=8, **options
    )
    return model, history


def measured(shared: bool) -> dict[str, Tensor]:
    """Scores without a model: what the measures alone make of many users in small batches."""
    split = shop()
    table = torch.randn(100, split.train.rows.shape[1], generator=torch.Generator().manual_seed(9))
    counts = torch.arange(table.shape[1])
    report = evaluate(
        lambda b: table[b.number],
        split.test,
        recall=(5,),
        ndcg=(9,),
        batch=7,
        likes=counts,
        device="cpu",
        shared=shared,
    )
    numbers = {"coverage": report.coverage, "popularity": report.popularity} | report.mean
    numbers |= {f"error of {name}": value for name, value in report.error.items()}
    return {name: torch.tensor(value) for name, value in numbers.items()} | {
        "times": report.times, **{f"{name} of each": values for name, values in report.per_user.items()}
    }  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- images


def pictures(count: int = 160) -> tuple[Tensor, Tensor]:
    """Four classes, each a colour with noise on it."""
    generator = torch.Generator().manual_seed(11)
    colours = torch.tensor([[190, 70, 70], [70, 190, 70], [70, 70, 190], [190, 190, 70]])[:, :, None, None]
    labels = torch.arange(count) % 4
    noise = torch.randint(-40, 40, (count, 3, 8, 8), generator=generator)
    return (colours[labels] + noise).clamp(0, 255).to(torch.uint8), labels


def classified(rule: str, **options: Any) -> tuple[nn.Module, list[dict[str, Any]]]:
    """A fit to generated images: without dropout, under the bound, or with rates that follow held-out data."""
    torch.manual_seed(12)
    dropout = nn.Identity() if rule == "plain" else LearnableDropout(None, 0.3)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 16), nn.ReLU(), dropout, nn.Linear(16, 4))  # fmt: skip
    images, labels = pictures()
    batches = Batches(images, labels, 20, train=True, augment=True, generator=torch.Generator())
    objective, epochs = None, options.pop("epochs", 12)
    if rule == "bound":
        objective = Objective(model, examples=len(labels))
    elif rule == "balanced":
        held_out = [(images[:20].float() / 255, labels[:20])]
        objective = Objective(model, held_out=held_out, steps=epochs * len(batches), examples=len(labels))
    schedule = Schedule(epochs, lr=1e-2, rate_lr=3e-2)
    return model, fit_images(model, objective, batches, schedule, seed=13, progress=False, **options)


def accuracy(model: nn.Module) -> float:
    images, labels = pictures()
    if any(isinstance(m, LearnableDropout) for m in model.modules()):
        found = lbdrop.predict(model, images.float() / 255, samples=10, generator=torch.Generator().manual_seed(0)).mean
    else:
        found = model.eval()(images.float() / 255)
    return float((found.argmax(1) == labels).float().mean())
