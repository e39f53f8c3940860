"""Requests that wait for one another for a moment and are answered together, by the one thread that computes.

The thread takes what is there. Where several came together last time it waits for as many again, a few milliseconds at most:
clients that were answered together ask together. Who asks alone never waits. The queue is bounded, and who finds it full is
told to come back; what was taken in is answered, also when the service is stopped.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, Protocol, TypeVar

__all__ = ["Batcher", "Full"]


class Weighed(Protocol):
    """Anything that says how much work it is."""

    @property
    def rows(self) -> int: ...


Question = TypeVar("Question", bound=Weighed)
Answer = TypeVar("Answer")


class Full(Exception):
    """As many requests are waiting as may."""


class _Job(NamedTuple):
    questions: Sequence
    rows: int
    future: asyncio.Future
    loop: asyncio.AbstractEventLoop


class Batcher(Generic[Question, Answer]):
    """Asked from coroutines, answers from a thread of its own.

    Args:
        answer: from the questions of many requests to their answers, in order.
        rows: work in one batch; a request that is more by itself is a batch of its own.
        wait: seconds that the first of a batch waits for others at most.
        waiting: requests taken in at most, those being answered counted.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Question]], Sequence[Answer]],
        *,
        rows: int = 64,
        wait: float = 0.002,
        waiting: int = 256,
    ):
        self.answer, self.rows, self.wait, self.waiting = answer, rows, wait, waiting
        self.queue: SimpleQueue[_Job | None] = SimpleQueue()
        self.open = 0
        """Requests taken in and not answered yet; only the event loop counts them."""
        self.batches = 0
        """Batches answered so far."""
        self.thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def start(self) -> None:
        self.thread = threading.Thread(target=self._work, name="lbdrop-forward", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Answer what was taken in, then end the thread."""
        if self.thread is not None:
            self.queue.put(None)
            self.thread.join()
            self.thread = None

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        """The answers to one request's questions; :class:`Full` at once where too many are waiting."""
        if self.open >= self.waiting:
            raise Full
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self.open += 1
        try:
            self.queue.put(_Job(questions, sum(each.rows for each in questions), future, loop))
            return await future
        finally:
            self.open -= 1

    # --------------------------------------------------------------------------------------------------- in the thread

    def _work(self) -> None:
        before, stopping = 1, False
        while not stopping:
            first = self.queue.get()
            if first is None:
                return
            jobs, stopping = self._collect(first, before)
            before = len(jobs)
            # Who gave up waiting is not worth the work.
            if jobs := [job for job in jobs if not job.future.cancelled()]:
                self._run(jobs)

    def _collect(self, first: _Job, before: int) -> tuple[list[_Job], bool]:
        jobs, rows, until = [first], first.rows, time.monotonic() + self.wait
        while rows < self.rows:
            patience = until - time.monotonic() if len(jobs) < before else 0.0
            try:
                job = self.queue.get(timeout=max(patience, 0.0))
            except Empty:
                break
            if job is None:
                return jobs, True
            jobs.append(job)
            rows += job.rows
        return jobs, False

    def _run(self, jobs: list[_Job]) -> None:
        answers, error = [], None
        try:
            answers = self.answer([question for job in jobs for question in job.questions])
        except Exception as raised:  # told to those who asked; the thread goes on
            error = raised
        self.batches += 1
        done, results = 0, []
        for job in jobs:
            results.append((job.future, answers[done : done + len(job.questions)]))
            done += len(job.questions)
        # Once for the whole batch: waking the event loop takes longer than an answer.
        jobs[0].loop.call_soon_threadsafe(_deliver, results, error)


def _deliver(results: list[tuple[asyncio.Future, Sequence]], error: Exception | None) -> None:
    for future, answers in results:
        if future.done():
            continue
        if error is None:
            future.set_result(answers)
        else:
            future.set_exception(error)
