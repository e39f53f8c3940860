"""Requests are batched, wait for a bounded time, and every accepted one is answered."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from lbdrop.serve.batching import Batcher, QueueFull


@dataclass(frozen=True)
class Number:
    value: int
    rows: int = 1


class Doubling:
    """Doubles numbers, keeps the batches, and can be blocked."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.free = threading.Event()
        self.free.set()
        self.begun = threading.Event()

    def __call__(self, queries: Sequence[Number]) -> list[int]:
        self.begun.set()
        assert self.free.wait(20)
        self.batches.append([each.value for each in queries])
        if any(each.value < 0 for each in queries):
            raise ZeroDivisionError
        return [2 * each.value for each in queries]


def run(
    test: Callable[[Batcher[Number, int], Doubling], Awaitable[Any]],
    doubling: Doubling | None = None,
    **limits: Any,
) -> Doubling:
    answer = doubling or Doubling()
    batcher: Batcher[Number, int] = Batcher(answer, **limits)

    async def main() -> None:
        batcher.start()
        try:
            await asyncio.wait_for(test(batcher, answer), 30)
        finally:
            answer.free.set()
            await asyncio.to_thread(batcher.stop)

    asyncio.run(main())
    assert batcher.pending == 0
    assert not batcher.running
    return answer


async def blocked_by(batcher: Batcher[Number, int], answer: Doubling, value: int = 0) -> "asyncio.Task[Any]":
    """A first request that keeps the thread busy until ``free`` is set."""
    answer.free.clear()
    answer.begun.clear()
    first = asyncio.create_task(batcher.submit([Number(value)]))
    await asyncio.to_thread(answer.begun.wait, 20)
    return first


def test_requests_that_arrive_during_a_batch_form_the_next_one() -> None:
    async def test(batcher: Batcher[Number, int], answer: Doubling) -> None:
        first = await blocked_by(batcher, answer)
        others = [asyncio.create_task(batcher.submit([Number(n), Number(10 * n)])) for n in (1, 2, 3)]
        await asyncio.sleep(0)
        answer.free.set()
        assert [list(each) for each in await asyncio.gather(first, *others)] == [[0], [2, 20], [4, 40], [6, 60]]

    assert run(test).batches == [[0], [1, 10, 2, 20, 3, 30]]


def test_batch_has_at_most_max_rows_unless_one_request_is_larger() -> None:
    async def test(batcher: Batcher[Number, int], answer: Doubling) -> None:
        first = await blocked_by(batcher, answer)
        others = [
            asyncio.create_task(batcher.submit([Number(n, rows)]))
            for n, rows in ((1, 2), (2, 2), (3, 1), (4, 99), (5, 1))
        ]
        await asyncio.sleep(0)
        answer.free.set()
        await asyncio.gather(first, *others)

    assert run(test, max_rows=4, max_wait=0.0).batches == [[0], [1, 2], [3, 4], [5]]


def test_single_client_does_not_wait() -> None:
    async def test(batcher: Batcher[Number, int], _: Doubling) -> None:
        for n in range(3):
            assert list(await batcher.submit([Number(n)])) == [2 * n]

    run(test, max_wait=1e6)


def test_batch_waits_for_as_many_requests_as_the_last_one_had() -> None:
    async def test(batcher: Batcher[Number, int], answer: Doubling) -> None:
        first = await blocked_by(batcher, answer)
        together = [asyncio.create_task(batcher.submit([Number(n)])) for n in (1, 2)]
        await asyncio.sleep(0)
        answer.free.set()
        await asyncio.gather(first, *together)
        again = asyncio.create_task(batcher.submit([Number(3)]))
        await asyncio.sleep(0.05)
        assert not again.done()  # two came together before, so the second is waited for
        await asyncio.gather(again, batcher.submit([Number(4)]))

    assert run(test, max_wait=1e6).batches == [[0], [1, 2], [3, 4]]


def test_batch_waits_at_most_max_wait() -> None:
    async def test(batcher: Batcher[Number, int], answer: Doubling) -> None:
        first = await blocked_by(batcher, answer)
        together = [asyncio.create_task(batcher.submit([Number(n)])) for n in (1, 2)]
        await asyncio.sleep(0)
        answer.free.set()
        await asyncio.gather(first, *together)
        await batcher.submit([Number(3)])

    assert run(test, max_wait=0.01).batches == [[0], [1, 2], [3]]


def test_full_queue_rejects_a_request_and_accepts_it_later() -> None:
    async def test(batcher: Batcher[Number, int], answer: Doubling) -> None:
        first = await blocked_by(batcher, answer)
        second = asyncio.create_task(batcher.submit([Number(1)]))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await batcher.submit([Number(2)])
        answer.free.set()
        await asyncio.gather(first, second)
        assert list(await batcher.submit([Number(2)])) == [4]

    run(test, max_pending=2)


def test_error_of_a_batch_goes_to_its_callers_and_the_thread_continues() -> None:
    async def test(batcher: Batcher[Number, int], _: Doubling) -> None:
        with pytest.raises(ZeroDivisionError):
            await batcher.submit([Number(-1)])
        assert list(await batcher.submit([Number(5)])) == [10]

    run(test)


def test_cancelled_request_is_not_computed() -> None:
    async def test(batcher: Batcher[Number, int], answer: Doubling) -> None:
        first = await blocked_by(batcher, answer)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(batcher.submit([Number(7)]), 0.01)
        answer.free.set()
        await first
        await batcher.submit([Number(8)])

    assert run(test).batches == [[0], [8]]


def test_accepted_requests_are_answered_before_stop_returns() -> None:
    async def test(batcher: Batcher[Number, int], answer: Doubling) -> None:
        tasks = [
            await blocked_by(batcher, answer),
            *(asyncio.create_task(batcher.submit([Number(n)])) for n in range(1, 6)),
        ]
        await asyncio.sleep(0)
        stopping = asyncio.create_task(asyncio.to_thread(batcher.stop))
        await asyncio.sleep(0.01)
        answer.free.set()
        await stopping
        assert [list(each) for each in await asyncio.gather(*tasks)] == [[0], [2], [4], [6], [8], [10]]

    run(test, max_rows=2)
