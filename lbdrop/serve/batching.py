"""Requests that arrive close together are answered in one batch, by the one thread that computes.

The thread takes what is in the queue. If the last batch had several requests, it waits a few milliseconds for as many again,
because clients that were answered together tend to ask together. A single client never waits. The queue is bounded: a request
that finds it full is rejected. Every accepted request is answered, also when the service stops.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, Protocol, TypeVar

__all__ = ["Batcher", "QueueFull"]


class HasRows(Protocol):
    """Anything that says how much work it is."""

    @property
    def rows(self) -> int: ...


Query = TypeVar("Query", bound=HasRows)
Result = TypeVar("Result")


class QueueFull(Exception):
    """The largest allowed number of requests is waiting."""


class _Job(NamedTuple):
    queries: Sequence
    rows: int
    future: asyncio.Future
    loop: asyncio.AbstractEventLoop


class Batcher(Generic[Query, Result]):
    """Takes queries from coroutines and computes their results in a thread of its own.

    Args:
        compute: from the queries of many requests to their results, in order.
        max_rows: work in one batch; a request with more rows than that is a batch of its own.
        max_wait: longest time in seconds that the first request of a batch waits for others.
        max_pending: requests accepted at a time, including those being computed.
        name: of the thread.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Query]], Sequence[Result]],
        *,
        max_rows: int = 64,
        max_wait: float = 0.002,
        max_pending: int = 256,
        name: str = "inference",
    ):
        self.name = f"lbdrop-{name}"
        self.compute, self.max_rows, self.max_wait, self.max_pending = compute, max_rows, max_wait, max_pending
        self.queue: SimpleQueue[_Job | None] = SimpleQueue()
        self.pending = 0
        """Requests accepted and not answered yet; only the event loop counts them."""
        self.thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def start(self) -> None:
        self.thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Answer the accepted requests, then end the thread."""
        if self.thread is not None:
            self.queue.put(None)
            self.thread.join()
            self.thread = None

    async def submit(self, queries: Sequence[Query]) -> Sequence[Result]:
        """The results of one request's queries; raises :class:`QueueFull` at once if too many are waiting."""
        if self.pending >= self.max_pending:
            raise QueueFull
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self.pending += 1
        try:
            self.queue.put(_Job(queries, sum(query.rows for query in queries), future, loop))
            return await future
        finally:
            self.pending -= 1

    # --------------------------------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        last_size, stopping = 1, False
        while not stopping:
            first = self.queue.get()
            if first is None:
                return
            jobs, stopping = self._collect(first, last_size)
            last_size = len(jobs)
            if jobs := [job for job in jobs if not job.future.cancelled()]:
                self._compute(jobs)

    def _collect(self, first: _Job, last_size: int) -> tuple[list[_Job], bool]:
        """The jobs of one batch, and whether the thread shall stop after it."""
        jobs, rows, deadline = [first], first.rows, time.monotonic() + self.max_wait
        while rows < self.max_rows:
            timeout = deadline - time.monotonic() if len(jobs) < last_size else 0.0
            try:
                job = self.queue.get(timeout=max(timeout, 0.0))
            except Empty:
                break
            if job is None:
                return jobs, True
            jobs.append(job)
            rows += job.rows
        return jobs, False

    def _compute(self, jobs: list[_Job]) -> None:
        results, error = [], None
        try:
            results = self.compute([query for job in jobs for query in job.queries])
        except Exception as raised:  # it goes to the callers; the thread continues
            error = raised
        start, outcomes = 0, []
        for job in jobs:
            outcomes.append((job.future, results[start : start + len(job.queries)]))
            start += len(job.queries)
        # Once for the whole batch: waking the event loop takes longer than a result.
        jobs[0].loop.call_soon_threadsafe(_deliver, outcomes, error)


def _deliver(outcomes: list[tuple[asyncio.Future, Sequence]], error: Exception | None) -> None:
    for future, results in outcomes:
        if future.done():
            continue
        if error is None:
            future.set_result(results)
        else:
            future.set_exception(error)
