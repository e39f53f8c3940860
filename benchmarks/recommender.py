"""How long an epoch of the recommender takes, beside the usual dense-batch loop and beside what the hardware allows at best.

Claims, on one H200 and Netflix's 383,170 training users in batches of 500: an epoch of Mult-VAE (``vae-drop``) in at most
0.8 s, of SIVAE with learned rates and V = 2 in at most twice that. The port of the usual loop (slice a CSR matrix, ``toarray``,
copy, dropout, dense ``log_softmax · x``, Adam) runs in turn with ours in the same process; times are medians. The floor is
the larger of two: the multiply-adds of the step's products at the rate a large product reaches on the same device in the
same precision, and the bytes that must move at the rate of a large copy. Then the 100 best items of every user, twice: as
tensors in memory from one pass without masks, and as ``lbdrop recommend score`` ships them, into a Parquet file with ids, over
as many masks as the method averages.

Run: ``python -m benchmarks.recommender ml-1m data/ml-1m.npz`` on a CPU, ``… netflix data/netflix.npz --allow-partial`` on a
GPU; ``python -m benchmarks.recommender synthetic`` draws data of Netflix's size.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.sparse import csr_array
from torch import Tensor, nn

from benchmarks.timing import peak_bytes, synchronize
from experiments.collaborative.data.protocols import get_protocol, read
from lbdrop.io.records import provenance, write_json
from lbdrop.recommend import VAE, Interactions, Recommender, Rows, Settings, method
from lbdrop.recommend.answer.scoring import best_items, scoring
from lbdrop.recommend.train.loop import Loop, launch

__all__ = ["main"]

NETFLIX = (463_170, 17_767, 56_634_105)  # users, items, likes


def main(
    name: Annotated[str, typer.Argument(help="ml-1m, ml-20m, netflix, msd, or synthetic.")] = "synthetic",
    source: Annotated[Path | None, typer.Argument(help="The data set's files, or one .npz.")] = None,
    allow_partial: Annotated[bool, typer.Option(help="Go on where ratings are missing.")] = False,
    users: Annotated[int | None, typer.Option(min=1, help="Only so many training users.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Users a step.")] = 500,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; every contestant runs an epoch in each.")] = 5,
    port_steps: Annotated[
        int, typer.Option(min=1, help="Steps of the dense loop in a round; its epoch is extrapolated.")
    ] = 100,
    top: Annotated[int, typer.Option(min=1, help="Items for every user at the end.")] = 100,
    out: Annotated[Path | None, typer.Option(help="The JSON to write.")] = None,
) -> None:
    """Seconds an epoch, the floor, and recommendations for everybody."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    console = Console(highlight=False)
    everybody, train = data(name, source, allow_partial)
    train = train if users is None else train[:users]
    console.print(f"{train.shape[0]:,} users × {train.shape[1]:,} items, {train.nnz:,} likes on {device}", markup=False)
    rows = Rows.from_csr(train, device)
    ours = {each: method(each, batch=batch) for each in ("vae-drop", "sivae-lbd")}
    torch.manual_seed(0)
    contestants: dict[str, Contestant] = {"dense loop": port(train, ours["vae-drop"], port_steps, device)}
    models = {each: VAE(train.shape[1], settings).to(device) for each, settings in ours.items()}
    for each, model in models.items():
        contestants[each] = epochs(model, rows)
    measured = measure(contestants, rounds)
    steps, limits = rows.steps(batch), rates(device)
    for each, settings in ours.items():
        floor = Floor.of(settings, rows, device, models[each])
        measured[each] |= floor.beside(measured[each]["seconds"], limits)
    listing = recommendations(models["vae-drop"], everybody, device, top)
    files = {each: to_file(model, everybody, top) for each, model in models.items()}
    console.print(table(measured, steps))
    console.print(
        f"top {top} for {listing['users']:,} users in memory, vae-drop without masks: {listing['seconds']:.2f} s,"
        f" {listing['users_per_second']:,.0f} users/s, {listing['peak_bytes'] / 2**20:,.0f} MiB"
    )
    for each, found in files.items():
        console.print(
            f"top {top} for {found['users']:,} users to Parquet, {each} over {found['samples']} masks:"
            f" {found['seconds']:.2f} s, {found['users_per_second']:,.0f} users/s, a file of"
            f" {found['file_bytes'] / 2**20:,.0f} MiB"
        )
    result = {
        "settings": {"data": name, "users": train.shape[0], "items": train.shape[1], "likes": int(train.nnz), "batch": batch,
                     "steps": steps, "rounds": rounds, "precision": "bf16-mixed" if device.type == "cuda" else "float32"},
        "limits": limits,
        "epoch": measured,
        "recommend_all": listing,
        "score_to": files,
        "provenance": provenance(),
    }  # fmt: skip
    path = out or Path(__file__).parent / "results" / f"recommender-{device.type}.json"
    console.print(f"JSON: {write_json(path, result)}", soft_wrap=True)


def data(name: str, source: Path | None, allow_partial: bool) -> tuple[Any, Any]:
    """Everybody's rows and those of the training users."""
    if name == "synthetic":
        everybody = synthetic(*NETFLIX)
        return everybody, csr_array(everybody[: NETFLIX[0] - 80_000])
    if source is None:
        raise typer.BadParameter(f"{name}: say where its files are")
    protocol = get_protocol(name)
    interactions = protocol.interactions(read(name, source, allow_partial=allow_partial))
    split = protocol.split(interactions)
    kept = np.flatnonzero(interactions.items.is_in(split.train.items.implode()).to_numpy())
    return csr_array(interactions.rows[:, kept]), split.train.rows


def synthetic(users: int, items: int, likes: int) -> csr_array:
    """As many likes, spread over users and items about as unevenly as Netflix's."""
    random = np.random.default_rng(0)
    activity = random.lognormal(0.0, 1.1, users)
    count = np.clip(1.2 * activity / activity.sum() * likes, 5, items / 4).astype(
        np.int64
    )  # a sixth will be drawn twice
    weight = 1.0 / (np.arange(items) + 50.0) ** 1.3
    user = np.repeat(np.arange(users), count)
    item = np.searchsorted(np.cumsum(weight / weight.sum()), random.random(len(user)))
    matrix = csr_array((np.ones(len(user), np.float32), (user, np.minimum(item, items - 1))), shape=(users, items))
    matrix.sum_duplicates()
    matrix.data[:] = 1
    return matrix


# -------------------------------------------------------------------------------------------------------- contestants

Contestant = Callable[[int], float]
"""Runs the epoch of a number and gives its seconds."""


def epochs(model: VAE, rows: Rows) -> Contestant:
    """Our own loop, as ``fit`` runs it."""
    loop = Loop(model, rows, model.settings, launch(rows.device))
    return lambda number: loop.epoch(number)["seconds"]


def port(train: Any, settings: Settings, steps: int, device: torch.device) -> Contestant:
    """Mult-VAE as it is usually written: a dense batch made on the host and copied, in float32."""
    items, size = train.shape[1], settings.batch
    network = _Dense(items, settings).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.lr)
    total = -(-train.shape[0] // size)
    steps = min(steps, total)

    def run(number: int) -> float:
        order = np.random.default_rng(number).permutation(train.shape[0])
        start = time.perf_counter()
        for step in range(steps):
            x = torch.from_numpy(train[order[step * size : (step + 1) * size]].toarray()).to(device)
            logits, mean, log_variance = network(x)
            kl = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(1).mean()
            loss = -(F.log_softmax(logits, 1) * x).sum(1).mean() + settings.beta(step) * kl
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
        return (time.perf_counter() - start) * total / steps

    return run


class _Dense(nn.Module):
    def __init__(self, items: int, s: Settings):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(items, s.hidden), nn.Tanh(), nn.Linear(s.hidden, 2 * s.latent))
        self.decoder = nn.Sequential(nn.Linear(s.latent, s.hidden), nn.Tanh(), nn.Linear(s.hidden, items))
        self.drop = nn.Dropout(s.rate)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(self.drop(F.normalize(x))).chunk(2, 1)
        return self.decoder(mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)), mean, log_variance


def measure(contestants: dict[str, Contestant], rounds: int) -> dict[str, dict[str, Any]]:
    """Median seconds an epoch; contestants take turns, so that whatever slows the machine slows all of them."""
    for run in contestants.values():
        run(1)  # warm up: kernels loaded, memory taken
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for number in track(range(2, rounds + 2), "epochs", transient=True):
        for name, run in contestants.items():
            times[name].append(run(number))
    base = statistics.median(times["dense loop"])
    return {
        name: {
            "seconds": statistics.median(each),
            "fastest_seconds": min(each),
            "speedup_over_dense_loop": base / statistics.median(each),
        }
        for name, each in times.items()
    }


# -------------------------------------------------------------------------------------------------------------- floor


@dataclass(frozen=True)
class Floor:
    """What one epoch must do at least."""

    flops: float
    bytes: float

    @classmethod
    def of(cls, s: Settings, rows: Rows, device: torch.device, model: nn.Module) -> "Floor":
        """Of the paper's network: items → hidden → 2·latent, latent → hidden → items.

        Products: with learned rates the forward pass runs for both masks of the mirrored pair, the backward pass for one,
        and the encoder for V + 1 masks each. On a CPU the first layer only touches the items of the rows.
        Bytes: in each step Adam reads weights, gradients and two moments and writes three of them, the backward pass
        writes the gradient, each pass reads the weights; the logits are written, read for the normaliser, read
        and written for their gradient, and that is read for two products.
        """
        width = 2 if device.type == "cuda" else 4
        forward, masks = (2, s.extra_masks + 1) if s.dropout == "learned" else (1, 1)
        users, items, steps = rows.users, rows.items, rows.steps(s.batch)
        first = masks * (rows.entries if device.type == "cpu" else users * items) * s.hidden
        heads, body, last = (
            users * masks * s.hidden * 2 * s.latent,
            users * s.latent * s.hidden,
            users * s.hidden * items,
        )
        flops = 2 * (first * (forward + 1) + (heads + body + last) * (forward + 2))
        weights = sum(p.numel() for p in model.parameters())
        logits = users * items * width
        moved = steps * weights * (7 * 4 + 4 + width * (forward + 1)) + logits * (4 + 2 * forward)
        return cls(flops, moved)

    def beside(self, seconds: float, limits: dict[str, float]) -> dict[str, float]:
        arithmetic = self.flops / limits["flops_per_second"]
        traffic = self.bytes / limits["bytes_per_second"]
        return {
            "arithmetic_floor_seconds": arithmetic,
            "traffic_floor_seconds": traffic,
            "ratio_to_floor": seconds / max(arithmetic, traffic),
            "ratio_to_sum_of_floors": seconds / (arithmetic + traffic),
        }


def rates(device: torch.device) -> dict[str, float]:
    """What a large product and a large copy reach here."""
    cuda = device.type == "cuda"
    side = 8192 if cuda else 1536
    a = torch.randn(side, side, device=device, dtype=torch.bfloat16 if cuda else torch.float32)
    source = torch.zeros(2**28 if cuda else 2**25, device=device)
    target = torch.empty_like(source)
    return {
        "flops_per_second": 2 * side**3 / fastest(lambda: a @ a, device),
        "bytes_per_second": 2 * source.nbytes / fastest(lambda: target.copy_(source), device),
    }


def fastest(run: Callable[[], object], device: torch.device, repeats: int = 10) -> float:
    times = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times)


# ---------------------------------------------------------------------------------------------------- recommendations


def recommendations(model: VAE, everybody: Any, device: torch.device, k: int) -> dict[str, float]:
    """In memory: the k best items of every user, from rows on the host to lists of numbers on the host, without masks.

    Peak memory is that beyond the model's.
    """
    scored = scoring(model, samples=0, seed=0)

    @torch.no_grad()
    def run(matrix: Any) -> int:
        rows = Rows.from_csr(matrix, device)
        return sum(len(chunk.item) for chunk in best_items(scored, rows, k, batch=1000))

    run(everybody[:2000])  # warm up
    start = time.perf_counter()
    found = run(everybody)
    seconds = time.perf_counter() - start
    # A profiler counts bytes on a CPU and would drown in a long list; a batch more or less makes no difference.
    peak = peak_bytes(lambda: run(everybody if device.type == "cuda" else everybody[:5000]), device)
    return {"k": k, "users": found, "seconds": seconds, "users_per_second": found / seconds, "peak_bytes": peak}


def to_file(model: VAE, everybody: Any, k: int) -> dict[str, float]:
    """As shipped: the k best items of every user, with ids and scores in one Parquet file, over the method's masks."""
    recommender = fitted(model, everybody)
    users = len(everybody.indptr) - 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scores.parquet"
        recommender.score_to(path, range(min(users, 2000)), k)  # warm up
        start = time.perf_counter()
        rows = recommender.score_to(path, k=k)
        seconds = time.perf_counter() - start
        size = path.stat().st_size
    return {"k": k, "samples": model.settings.samples, "users": users, "rows": rows, "seconds": seconds,
            "users_per_second": users / seconds, "file_bytes": size}  # fmt: skip


def fitted(model: VAE, everybody: Any) -> Recommender:
    """The model behind the recommender's verbs, as one that was loaded; users and items go by their numbers."""
    users, items = (pl.Series(np.arange(size)) for size in everybody.shape)
    found = Recommender(model.settings, progress=False)
    found.model_, found.settings_ = model, model.settings
    found.interactions_, found.items_ = Interactions(everybody, users, items), items
    found.likes_ = np.bincount(everybody.indices, minlength=len(items)).astype(np.float32)
    return found


def table(measured: dict[str, dict[str, Any]], steps: int) -> Table:
    shown = Table(title=f"one epoch, {steps} steps", title_justify="left")
    for heading in ("", "s", "ms a step", "× dense loop", "floor: products s", "floor: traffic s", "× floor"):
        shown.add_column(heading, justify="left" if not heading else "right")
    for name, m in measured.items():
        floors = [f"{m[key]:.3f}" if key in m else "" for key in ("arithmetic_floor_seconds", "traffic_floor_seconds")]
        shown.add_row(
            name,
            f"{m['seconds']:.3f}",
            f"{1e3 * m['seconds'] / steps:.2f}",
            f"{m['speedup_over_dense_loop']:.2f}",
            *floors,
            f"{m['ratio_to_floor']:.2f}" if "ratio_to_floor" in m else "",
        )
    return shown


if __name__ == "__main__":
    typer.run(main)
