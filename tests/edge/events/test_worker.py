"""The worker and the delivery: no sink delays or stops the loop."""

from __future__ import annotations

import queue
import threading

import pytest

from edge.events.event import Event
from edge.events.sink import OutputClosed, Sink, deliver
from edge.events.worker import DeliveryError, TemporaryError, Worker
from tests.fakes.sinks import Barrier, CallbackSink, RecordingSink, fail
from tests.fixtures.events import make_event
from tests.fixtures.waiting import until

LONG = 60.0


def closed(_: Event) -> None:
    raise OutputClosed


def test_deliver_counts_failures_and_serves_all_sinks(caplog: pytest.LogCaptureFixture) -> None:
    served = RecordingSink()
    sinks: list[Sink] = [CallbackSink(fail), served, CallbackSink(fail)]
    assert deliver(sinks, make_event()) == 2
    assert len(served) == 1
    assert "injected" in caplog.text
    with pytest.raises(OutputClosed):
        deliver([CallbackSink(closed), served], make_event())
    assert len(served) == 2


def test_full_worker_drops_and_never_blocks() -> None:
    barrier = Barrier()
    worker: Worker[int] = Worker(barrier, name="test", capacity=4, close_seconds=LONG)
    for number in range(6):
        worker.handle(number)  # would block here: the barrier is shut
    assert (worker.health().dropped, worker.health().waiting) == (2, 4)
    barrier.opened.set()
    worker.close()
    assert barrier.seen == [0, 1, 2, 3]
    assert worker.health().delivered == 4
    worker.handle(6)  # after the end
    assert worker.health().dropped == 3


def test_worker_that_waits_if_full_loses_nothing() -> None:
    seen: list[int] = []
    worker: Worker[int] = Worker(seen.append, name="test", capacity=1, wait_if_full=True, close_seconds=LONG)
    for number in range(100):
        worker.handle(number)
    worker.close()
    assert seen == list(range(100))
    worker.handle(100)  # would block here after the end
    assert worker.health().dropped == 1


@pytest.mark.parametrize("problem", [DeliveryError("not today"), RuntimeError("not today")])
def test_failed_item_is_counted_and_the_next_is_handled(problem: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def work(number: int) -> None:
        if number == 0:
            raise problem

    worker: Worker[int] = Worker(work, name="test", close_seconds=LONG)
    worker.handle(0)
    worker.handle(1)
    worker.close()
    assert (worker.health().failed, worker.health().delivered) == (1, 1)
    assert "not today" in caplog.text


def test_close_does_not_wait_longer_than_its_time(caplog: pytest.LogCaptureFixture) -> None:
    barrier = Barrier()
    worker: Worker[int] = Worker(barrier, name="test", close_seconds=0.01)
    worker.handle(0)
    assert barrier.entered.wait(30)
    worker.handle(1)
    worker.close()  # would block here
    assert worker.health().dropped == 2
    assert "the last 2 items were not delivered" in caplog.text
    barrier.opened.set()


def test_closed_output_is_reported_to_the_caller() -> None:
    worker: Worker[Event] = Worker(closed, name="test")
    worker.handle(make_event())
    until(lambda: worker._output_closed)
    with pytest.raises(OutputClosed):
        worker.handle(make_event())
    worker.close()


def test_item_is_repeated_after_a_pause_and_a_new_item_ends_the_pause() -> None:
    attempts: queue.SimpleQueue[int] = queue.SimpleQueue()
    failures = iter(range(3))

    def work(number: int) -> None:
        attempts.put(number)
        if next(failures, None) is not None:
            raise TemporaryError("away")

    worker: Worker[int] = Worker(work, name="test", close_seconds=LONG, jitter=lambda: 0.0)
    worker._pause = lambda problem: 3600.0 if worker.health().retried > 1 else 0.001  # type: ignore[method-assign]
    worker.handle(0)
    assert [attempts.get(timeout=30) for _ in range(2)] == [0, 0]
    worker.handle(1)
    assert attempts.get(timeout=30) == 0
    worker.handle(2)  # ends the third pause
    worker.close()
    assert [attempts.get(timeout=30) for _ in range(3)] == [0, 1, 2]
    assert (worker.health().delivered, worker.health().failed) == (3, 0)


def test_pauses_double_to_a_limit_and_start_again_after_a_success() -> None:
    problems = [TemporaryError("away")] * 4

    def work(_: int) -> None:
        if problems:
            raise problems.pop()

    worker: Worker[int] = Worker(work, name="test", pause_seconds=3.0, jitter=lambda: 0.5)
    worker.close()
    worker._queue.append((0.0, 0))
    pauses = [worker._handle_first() for _ in range(5)]
    assert pauses == [0.375, 0.75, 1.5, 2.25, None]  # three quarters of 0.5, 1, 2, 3
    problems.append(TemporaryError("away"))
    worker._queue.append((0.0, 1))
    assert worker._handle_first() == 0.375


def test_item_is_not_repeated_for_ever() -> None:
    now = [0.0]

    def work(_: int) -> None:
        raise TemporaryError("away")

    worker: Worker[int] = Worker(work, name="test", keep_seconds=60.0, pause_seconds=0.001, clock=lambda: now[0])
    worker.handle(0)
    until(lambda: worker.health().retried >= 1)
    now[0] = 61.0
    until(lambda: worker.health().failed == 1)
    worker.close()
    assert (worker.health().delivered, worker.health().waiting) == (0, 0)


def test_close_makes_one_last_attempt_and_finishes(caplog: pytest.LogCaptureFixture) -> None:
    attempts: queue.SimpleQueue[int] = queue.SimpleQueue()
    finished = threading.Event()

    def work(number: int) -> None:
        attempts.put(number)
        raise TemporaryError("away")

    worker: Worker[int] = Worker(work, name="test", close_seconds=LONG, finish=finished.set)
    worker._pause = lambda problem: 3600.0  # type: ignore[method-assign]
    worker.handle(0)
    attempts.get(timeout=30)
    worker.close()
    assert attempts.get(timeout=30) == 0
    assert attempts.empty()
    assert finished.is_set()
    assert worker.health().dropped == 1
    assert "the last 1 item was not delivered" in caplog.text


def test_idle_runs_at_its_own_times_also_after_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("edge.events.worker.RETRY_SECONDS", 0.001)
    calls: queue.SimpleQueue[None] = queue.SimpleQueue()
    answers = iter([0.001, RuntimeError("not today"), TemporaryError("not now"), None])

    def idle() -> float | None:
        calls.put(None)
        answer = next(answers, None)
        if isinstance(answer, Exception):
            raise answer
        return answer

    worker: Worker[int] = Worker(lambda number: None, name="test", idle=idle, close_seconds=LONG)
    for _ in range(4):
        calls.get(timeout=30)
    assert calls.empty()
    worker.handle(0)
    calls.get(timeout=30)  # after the item, before the next wait
    worker.close()
    assert worker.health().failed == 1
    assert "not today" in caplog.text
    assert "not now; will retry" in caplog.text
