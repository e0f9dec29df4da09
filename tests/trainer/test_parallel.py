"""Work on a real Dask cluster: done by its workers, at the same time, and not lost when a worker dies."""

from __future__ import annotations

import os
import signal
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import LocalCluster, Scheduler, SpecCluster
from threadpoolctl import threadpool_info

from edge.errors import ClusterError
from trainer import parallel
from trainer.parallel import each, in_threads

pytestmark = pytest.mark.slow


def workers(count: int) -> LocalCluster:
    return LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=":0")


def meet(own: Path, other: Path) -> int:
    """Return only if the other call runs at the same time."""
    own.touch()
    until = time.monotonic() + 300
    while not other.exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    return os.getpid()


@pytest.mark.parametrize("on_a_cluster", [False, True])
def test_two_calls_run_at_the_same_time_in_other_processes(cluster: str, tmp_path: Path, on_a_cluster: bool) -> None:
    calls = [(tmp_path / "a", tmp_path / "b"), (tmp_path / "b", tmp_path / "a")]
    pids = list(each(meet, calls, jobs=2, scheduler=cluster if on_a_cluster else None, ordered=False))
    assert len({*pids, os.getpid()}) == 3


@pytest.mark.parametrize(("limit", "threads"), [("1", 1), ("3", 3)])
def test_threads_keep_the_order_and_obey_the_limit(limit: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    barrier = threading.Barrier(threads, timeout=300)

    def number_of_thread(number: int) -> tuple[int, int]:
        barrier.wait()  # passes only if all threads work at once
        return number, threading.get_ident()

    found = in_threads(number_of_thread, range(2 * threads))
    assert [number for number, _ in found] == list(range(2 * threads))
    assert len({thread for _, thread in found}) == threads


def blas_threads(_: int) -> list[int]:
    np.ones((2, 2)) @ np.ones((2, 2))
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_cluster_keeps_the_order_and_gives_each_call_one_thread(cluster: str) -> None:
    assert list(each(pow, [(i, 2) for i in range(20)], scheduler=cluster)) == [i * i for i in range(20)]
    assert sorted(each(pow, [(i, 2) for i in range(5)], scheduler=cluster, ordered=False)) == [0, 1, 4, 9, 16]
    for threads in each(blas_threads, [(0,), (1,)], scheduler=cluster):
        assert threads
        assert set(threads) == {1}


def fail(_: int) -> None:
    raise ZeroDivisionError("of the function itself")


def test_error_of_the_function_reaches_the_caller(cluster: str) -> None:
    with pytest.raises(ZeroDivisionError, match="itself"):
        list(each(fail, [(0,)], scheduler=cluster))


def die(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_call_that_kills_every_worker_is_an_error() -> None:
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):  # by default three workers are tried
        one = workers(1)
    with one, pytest.raises(ClusterError, match="died"):
        list(each(die, [(0,)], scheduler=one.scheduler_address, ordered=False))


def die_twice(array: np.ndarray, folder: Path, number: int) -> float:
    """The first two calls kill their workers, and with them every copy of the array that was there."""
    for mark in (folder / "first", folder / "second"):
        if not mark.exists():
            mark.touch()
            die(0)
    return float(array[number:].sum())


def test_killed_workers_lose_neither_calls_nor_data(tmp_path: Path) -> None:
    array = np.ones(10_000)
    calls = [(array, tmp_path, number) for number in range(6)]
    with workers(2) as two:
        sums = list(each(die_twice, calls, scheduler=two.scheduler_address))
    assert sums == [10_000 - number for number in range(6)]


def wait_if_positive(number: int) -> int:
    time.sleep(600 if number else 0)
    return number


def test_cluster_that_stops_is_an_error() -> None:
    with workers(1) as local:
        results = each(wait_if_positive, [(i,) for i in range(3)], scheduler=local.scheduler_address)
        assert next(results) == 0
        local.close()
        with pytest.raises(ClusterError, match="is gone"):
            list(results)


def test_missing_scheduler_missing_workers_and_other_versions_are_errors(
    monkeypatch: pytest.MonkeyPatch, cluster: str
) -> None:
    with monkeypatch.context() as short:
        short.setattr(parallel, "SCHEDULER_SECONDS", 0.2)
        for address in ("tcp://127.0.0.1:1", "nonsense://"):
            with pytest.raises(ClusterError, match=f"No Dask scheduler answers at {address}"):
                list(each(pow, [(1, 2)], scheduler=address))
    monkeypatch.setattr(parallel, "SCHEDULER_SECONDS", 120)  # these answer, even on a busy machine
    only: dict[str, Any] = {"cls": Scheduler, "options": {"dashboard_address": ":0"}}
    with monkeypatch.context() as short, SpecCluster(scheduler=only, workers={}) as empty:
        short.setattr(parallel, "WORKER_SECONDS", 0.1)
        with pytest.raises(ClusterError, match="has no workers"):
            list(each(pow, [(1, 2)], scheduler=empty.scheduler_address))
    here = os.getpid()
    monkeypatch.setattr(parallel, "version", lambda name: "9.9" if os.getpid() == here else version(name))
    with pytest.raises(ClusterError, match=r"this machine has 9\.9"):
        list(each(pow, [(1, 2)], scheduler=cluster))
