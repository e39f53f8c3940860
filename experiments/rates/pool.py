"""Runs side by side: each in a process of its own with one thread, as many at a time as there are cores.

Networks of a table's tasks are too small for more than one core, or for a whole GPU, whose kernels wait for Python.
"""

import multiprocessing
import os
import signal
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

import torch

from experiments.rates import contestants, run, tasks
from lbdrop.errors import DropoutError

__all__ = ["Job", "cores", "outcomes"]


class Job(NamedTuple):
    """One run, by names alone, so that another process can be told of it."""

    task: str
    contestant: str
    seed: int
    folder: Path
    epochs: int | None = None
    device: str = "cpu"

    def run(self) -> dict[str, Any] | DropoutError:
        """Its record; or why there is none, since other runs do not depend on this one."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return run.run(
                    tasks.TASKS[self.task], contestants.CONTESTANTS[self.contestant], self.seed,
                    folder=self.folder, epochs=self.epochs, device=self.device,
                )  # fmt: skip
            except DropoutError as error:
                return error

    @property
    def label(self) -> str:
        return f"{self.task}, {contestants.CONTESTANTS[self.contestant].label}, seed {self.seed}"


def outcomes(jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, dict[str, Any] | DropoutError]]:
    """What came of each, as they end; one worker runs them here, in their order."""
    if min(workers, len(jobs)) <= 1:
        yield from ((job, job.run()) for job in jobs)
        return
    # Spawned: a fork would copy threads' locks, and CUDA cannot be used in one.
    context = multiprocessing.get_context("spawn")
    others = multiprocessing.active_children()
    with ProcessPoolExecutor(min(workers, len(jobs)), context, initializer=_alone) as pool:
        asked = {pool.submit(job.run): job for job in jobs}
        try:
            for done in as_completed(asked):
                yield asked[done], done.result()
        except BrokenProcessPool as error:
            raise DropoutError(
                "a process was killed, as happens where memory is short; runs that had ended are kept, and the same command"
                f" goes on with the others: try fewer than {workers} workers"
            ) from error
        finally:  # nobody waits for runs whose results are not wanted any more
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                if child not in others:
                    child.terminate()
                    child.join()


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _alone() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asked, which ends this one
    torch.set_num_threads(1)
