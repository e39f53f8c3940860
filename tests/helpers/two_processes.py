"""Run by ``torchrun`` in two processes: everything that :mod:`shared_work` can do, written to a file for each rank."""

import contextlib
import io
import sys
import time
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from experiments.rival_rules.self_tuning import SelfTuning
from experiments.vision.train import Classifier, Schedule
from helpers import shared_work as work
from lbdrop import DropoutError, LearnableDropout, Objective
from lbdrop.cli import app
from lbdrop.guards import processes
from lbdrop.io import files


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def masks_of_a_seed() -> Tensor:
    """The first masks after the same seed in every process."""
    model, drawn = work.network(), []
    objective = Objective(DistributedDataParallel(model), examples=100, estimator="disarm")
    plan = objective.runner.plan
    assert plan is not None
    plain = plan.estimator.draw
    noted = plan.estimator._replace(draw=lambda *a: drawn.append(plain(*a)) or drawn[-1])
    objective.runner.plan = plan._replace(estimator=noted)
    torch.manual_seed(0)
    objective(work.losses, *work.data()).backward()
    return drawn[0].z


def plain_masks() -> Tensor:
    """What an ordinary dropout drops in a step without an objective."""
    network, seen = nn.Sequential(nn.Dropout(0.5), nn.Linear(200, 3)), []
    network[0].register_forward_hook(lambda layer, inputs, output: seen.append(output))
    module = Classifier(network, None, Schedule(1, lr=0.1, rate_lr=0.1), steps=1, seed=0)
    module.on_train_epoch_start()
    module.training_step((torch.ones(3, 200), torch.arange(3)), 0)
    return seen[0]


def accumulated(rank: int) -> float:
    """Between two parts of a batch under no_sync and one, the difference of what is averaged over processes."""
    found = []
    for parts in (1, 2):
        model = work.network()
        for layer in (model[2], model[5]):  # kept with certainty: masks play no part
            layer.logit.requires_grad_(False).fill_(50.0)
        wrapped = DistributedDataParallel(model)
        objective = Objective(wrapped, examples=100, estimator="arm")
        x, y = (each[work.share(rank, 2)] for each in work.data())
        for part, (a, b) in enumerate(zip(x.chunk(parts), y.chunk(parts), strict=True)):
            last = part == parts - 1
            with contextlib.nullcontext() if last else wrapped.no_sync():
                (objective(work.losses, a, b) / parts).backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    return float((found[0] - found[1]).abs().max())


def called_without_gradients() -> float | None:
    """A call without gradients by one process, which must not wait for the other."""
    wrapped = DistributedDataParallel(work.network())
    if not processes.is_first():
        return None
    with torch.no_grad():
        return float(Objective(wrapped, examples=100)(work.losses, *work.data()))


def refusals() -> dict[str, str]:
    """The warning and the errors about models that cannot be shared."""
    found = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Objective(work.network(), examples=100)(work.losses, *work.data()).backward()
    found["alone"] = "".join(str(each.message) for each in caught)
    model = work.network()
    wrapped = DistributedDataParallel(model)
    for name, make in {
        "late": lambda: Objective(wrapped, SelfTuning(model, [work.data()], steps=10)),
        "other": lambda: setattr(Objective(work.network(), examples=1), "model", wrapped),
    }.items():
        try:
            make()
        except DropoutError as error:
            found[name] = str(error)
    return found


def states_apart(folder: Path, rank: int) -> list[str]:
    """The errors where each process has a folder of its own, and only the first finds a state there."""
    found = []
    for fit in (
        lambda: work.classified("bound", epochs=2, checkpoints=folder / ("states" if rank == 0 else "elsewhere")),
        lambda: work.recommended("recvae", checkpoints=folder / ("fitted" if rank == 0 else "elsewhere")),
    ):
        try:
            fit()
        except DropoutError as error:
            found.append(str(error))
    return found


@contextlib.contextmanager
def slow_disk() -> Iterator[None]:
    """A file takes its place long after it is written, as on a shared file system."""
    with mock.patch.object(files, "_flush", side_effect=lambda path: time.sleep(0.1)):
        yield


def command(folder: Path) -> str:
    """``lbdrop recommend fit`` as torchrun runs it; what it printed."""
    if processes.is_first():
        work.generate_shop(users=200, items=30, groups=3, seed=0).interactions.write_csv(folder / "shop.csv")
    dist.barrier()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        arguments = ["recommend", "fit", str(folder / "shop.csv"), "--out", str(folder / "model"), "--epochs", "2"]
        app(arguments, standalone_mode=False)
    return printed.getvalue()


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=100))  # a process that waits in vain reports where
    rank, ranks = dist.get_rank(), dist.get_world_size()
    result: dict[str, Any] = {name: work.core_gradients(name, rank, ranks) for name in work.ESTIMATORS}
    result |= {name: work.recommender_gradients(name, rank, ranks) for name in work.METHODS}
    result["tuned"] = [work.tuned(rank, ranks, wrapped=each) for each in (True, False)]
    result |= {how: work.balanced(rank, ranks, how) for how in work.SHARED}
    result["released"] = work.released(rank, ranks)
    result["masks"], result["accumulated"], result["refusals"] = masks_of_a_seed(), accumulated(rank), refusals()
    result["plain masks"] = plain_masks()
    result["measured"] = work.measured(shared=True)
    result["without gradients"] = called_without_gradients()
    for name in work.FITS:
        model, history = work.recommended(name)
        result[f"fit {name}"] = state(model), history.best_measure
    for rule in ("plain", "bound", "balanced"):
        model, epochs = work.classified(rule)
        result[f"images {rule}"] = state(model), epochs[-1]["loss"], work.accuracy(model)
        result[f"rates {rule}"] = [m.p for m in model.modules() if isinstance(m, LearnableDropout)]
    with slow_disk():
        work.classified("bound", epochs=1, checkpoints=folder / "states")
        work.recommended("recvae", checkpoints=folder / "fitted")
        resumed, epochs = work.classified("bound", epochs=2, checkpoints=folder / "states")
    result["resumed"] = state(resumed), len(epochs)
    result["apart"] = states_apart(folder, rank)
    result["printed"] = command(folder)
    torch.save(result, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
