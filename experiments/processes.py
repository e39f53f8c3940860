"""Jobs side by side: each in a process of its own with one thread, as many at a time as there are cores.

Networks of an experiment's tables are too small for more than one core, or for a whole GPU, whose kernels wait for Python.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch

from experiments.threads import one_thread
from lbdrop.errors import DropoutError

__all__ = ["Job", "outcomes", "usual_workers"]

# Each process has a context of its own there, which takes memory.
ON_A_GPU = 4
# Large tensors' memory stays with the process: glibc would give it back at once and be given it again page by page, which is a
# third of the time that measuring with masks takes. It comes in large pages, where the system has some: fewer of them to look
# up. Numbers stay the same.
KEEPING_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


class Job(Protocol):
    """Something that can be sent to another process, and run there."""

    def run(self) -> Any: ...


AnyJob = TypeVar("AnyJob", bound=Job)


def outcomes(jobs: Sequence[AnyJob], workers: int) -> Generator[tuple[AnyJob, Any], None, None]:
    """What came of each, as they end; one worker runs them here, in their order."""
    if min(workers, len(jobs)) <= 1:
        with one_thread():
            yield from ((job, job.run()) for job in jobs)
        return
    # Spawned: a fork would copy threads' locks, and CUDA cannot be used in one.
    context = multiprocessing.get_context("spawn")
    others = multiprocessing.active_children()
    with ProcessPoolExecutor(min(workers, len(jobs)), context, initializer=_set_up_worker) as pool:
        try:
            with _ctrl_c_deferred(), _environment(KEEPING_MEMORY):  # which those inherit that are started here
                futures = {pool.submit(job.run): job for job in jobs}
            for done in as_completed(futures):
                yield futures[done], done.result()
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


def usual_workers(device: str) -> int:
    """As many as there are cores for this process; fewer on a GPU."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if device == "cpu" else min(cores, ON_A_GPU)


def _set_up_worker() -> None:
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_it() -> None:  # were it killed, nobody would ever tell this process to end
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_it, daemon=True).start()


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """These variables, where nobody has set them otherwise."""
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@contextmanager
def _ctrl_c_deferred() -> Iterator[None]:
    """A terminal sends Ctrl-C to every process; the one that started the runs ends the others."""
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    # Blocked, which new processes inherit; and heard later, for it may come to another thread, and would be raised in this one.
    heard: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if heard:
            signal.raise_signal(signal.SIGINT)
