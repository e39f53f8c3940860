"""Requests wait for one another, not for ever, and none is lost."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from lbdrop.serve.batching import Batcher, Full


@dataclass(frozen=True)
class Number:
    value: int
    rows: int = 1


class Doubling:
    """Answers a number with its double, keeps the batches, and can be held up."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.free = threading.Event()
        self.free.set()
        self.begun = threading.Event()

    def __call__(self, asked: Sequence[Number]) -> list[int]:
        self.begun.set()
        assert self.free.wait(20)
        self.batches.append([each.value for each in asked])
        if any(each.value < 0 for each in asked):
            raise ZeroDivisionError
        return [2 * each.value for each in asked]


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
    assert batcher.open == 0
    assert not batcher.running
    return answer


async def hold_up(batcher: Batcher[Number, int], answer: Doubling, value: int = 0) -> "asyncio.Task[Any]":
    """A first request that keeps the thread busy until ``free`` is set."""
    answer.free.clear()
    answer.begun.clear()
    first = asyncio.create_task(batcher.ask([Number(value)]))
    await asyncio.to_thread(answer.begun.wait, 20)
    return first


def test_what_came_while_the_thread_was_busy_is_answered_together() -> None:
    async def test(batcher: Batcher[Number, int], answer: Doubling) -> None:
        first = await hold_up(batcher, answer)
        others = [asyncio.create_task(batcher.ask([Number(n), Number(10 * n)])) for n in (1, 2, 3)]
        await asyncio.sleep(0)
        answer.free.set()
        assert [list(each) for each in await asyncio.gather(first, *others)] == [[0], [2, 20], [4, 40], [6, 60]]

    assert run(test).batches == [[0], [1, 10, 2, 20, 3, 30]]


def test_a_batch_has_no_more_rows_than_told_and_a_large_request_is_one_of_its_own() -> None:
    async def test(batcher: Batcher[Number, int], answer: Doubling) -> None:
        first = await hold_up(batcher, answer)
        others = [
            asyncio.create_task(batcher.ask([Number(n, rows)])) for n, rows in ((1, 2), (2, 2), (3, 1), (4, 99), (5, 1))
        ]
        await asyncio.sleep(0)
        answer.free.set()
        await asyncio.gather(first, *others)

    assert run(test, rows=4, wait=0.0).batches == [[0], [1, 2], [3, 4], [5]]


def test_who_asks_alone_does_not_wait_for_others() -> None:
    async def test(batcher: Batcher[Number, int], _: Doubling) -> None:
        for n in range(3):
            assert list(await batcher.ask([Number(n)])) == [2 * n]

    run(test, wait=1e6)


def test_as_many_as_last_time_are_waited_for() -> None:
    async def test(batcher: Batcher[Number, int], answer: Doubling) -> None:
        first = await hold_up(batcher, answer)
        together = [asyncio.create_task(batcher.ask([Number(n)])) for n in (1, 2)]
        await asyncio.sleep(0)
        answer.free.set()
        await asyncio.gather(first, *together)
        again = asyncio.create_task(batcher.ask([Number(3)]))
        await asyncio.sleep(0.05)
        assert not again.done()  # two came together before, so the second is waited for
        await asyncio.gather(again, batcher.ask([Number(4)]))

    assert run(test, wait=1e6).batches == [[0], [1, 2], [3, 4]]


def test_the_second_never_coming_costs_only_the_wait() -> None:
    async def test(batcher: Batcher[Number, int], answer: Doubling) -> None:
        first = await hold_up(batcher, answer)
        together = [asyncio.create_task(batcher.ask([Number(n)])) for n in (1, 2)]
        await asyncio.sleep(0)
        answer.free.set()
        await asyncio.gather(first, *together)
        await batcher.ask([Number(3)])

    assert run(test, wait=0.01).batches == [[0], [1, 2], [3]]


def test_one_more_than_may_wait_is_sent_away_and_may_come_back() -> None:
    async def test(batcher: Batcher[Number, int], answer: Doubling) -> None:
        first = await hold_up(batcher, answer)
        second = asyncio.create_task(batcher.ask([Number(1)]))
        await asyncio.sleep(0)
        with pytest.raises(Full):
            await batcher.ask([Number(2)])
        answer.free.set()
        await asyncio.gather(first, second)
        assert list(await batcher.ask([Number(2)])) == [4]

    run(test, waiting=2)


def test_an_error_is_told_to_those_who_asked_and_the_thread_goes_on() -> None:
    async def test(batcher: Batcher[Number, int], _: Doubling) -> None:
        with pytest.raises(ZeroDivisionError):
            await batcher.ask([Number(-1)])
        assert list(await batcher.ask([Number(5)])) == [10]

    run(test)


def test_who_gave_up_is_not_worked_for() -> None:
    async def test(batcher: Batcher[Number, int], answer: Doubling) -> None:
        first = await hold_up(batcher, answer)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(batcher.ask([Number(7)]), 0.01)
        answer.free.set()
        await first
        await batcher.ask([Number(8)])

    assert run(test).batches == [[0], [8]]


def test_what_was_taken_in_is_answered_when_the_service_stops() -> None:
    async def test(batcher: Batcher[Number, int], answer: Doubling) -> None:
        tasks = [await hold_up(batcher, answer), *(asyncio.create_task(batcher.ask([Number(n)])) for n in range(1, 6))]
        await asyncio.sleep(0)
        stopping = asyncio.create_task(asyncio.to_thread(batcher.stop))
        await asyncio.sleep(0.01)
        answer.free.set()
        await stopping
        assert [list(each) for each in await asyncio.gather(*tasks)] == [[0], [2], [4], [6], [8], [10]]

    run(test, rows=2)
