"""Work on a real Dask cluster of two processes: done there, at the same time, and never waited for in vain."""

from __future__ import annotations

import os
import signal
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import LocalCluster, Scheduler, SpecCluster
from threadpoolctl import threadpool_info

from edge.errors import ClusterError
from trainer import parallel
from trainer.parallel import each


def meet(own: Path, other: Path) -> int:
    """Returns only if the other is at work at the same time."""
    own.touch()
    until = time.monotonic() + 300
    while not other.exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    return os.getpid()


@pytest.mark.parametrize("on_a_cluster", [False, True])
def test_two_work_at_the_same_time_and_not_in_this_process(cluster: str, tmp_path: Path, on_a_cluster: bool) -> None:
    calls = [(tmp_path / "a", tmp_path / "b"), (tmp_path / "b", tmp_path / "a")]
    pids = list(each(meet, calls, jobs=2, scheduler=cluster if on_a_cluster else None, ordered=False))
    assert len({*pids, os.getpid()}) == 3


def blas_threads(_: int) -> list[int]:
    import numpy as np

    np.ones((2, 2)) @ np.ones((2, 2))
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_each_has_one_thread_and_the_order_is_kept(cluster: str) -> None:
    assert list(each(pow, [(i, 2) for i in range(20)], scheduler=cluster)) == [i * i for i in range(20)]
    for threads in each(blas_threads, [(0,), (1,)], scheduler=cluster):
        assert threads
        assert set(threads) == {1}


def die(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_work_that_kills_its_workers_is_not_waited_for() -> None:
    one = LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0")
    with one, pytest.raises(ClusterError, match="died"):
        list(each(die, [(0,)], scheduler=one.scheduler_address, ordered=False))


def die_at_first(array: np.ndarray, mark: Path) -> float:
    """The worker that is called first, which is one that was given the array, takes its copy with it."""
    if not mark.exists():
        mark.touch()
        die(0)
    return float(array.sum())


def test_a_worker_that_dies_on_the_way_takes_no_data_with_it(tmp_path: Path) -> None:
    array = np.ones(10_000)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as two:
        sums = list(each(die_at_first, [(array, tmp_path / "mark")] * 6, scheduler=two.scheduler_address))
    assert sums == [10_000] * 6


def close_when_called(number: int, file: Path) -> int:
    file.touch()
    time.sleep(600 if number else 0)
    return number


def test_a_cluster_that_goes_away_is_said(tmp_path: Path) -> None:
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as local:
        results = each(close_when_called, [(i, tmp_path / "x") for i in range(3)], scheduler=local.scheduler_address)
        assert next(results) == 0
        local.close()
        with pytest.raises(ClusterError, match="is gone"):
            list(results)


def test_no_scheduler_no_workers_other_workers(monkeypatch: pytest.MonkeyPatch, cluster: str) -> None:
    with monkeypatch.context() as hasty:
        hasty.setattr(parallel, "SCHEDULER_SECONDS", 1)
        with pytest.raises(ClusterError, match=r"No Dask scheduler answers at tcp://127\.0\.0\.1:1"):
            list(each(pow, [(1, 2)], scheduler="tcp://127.0.0.1:1"))
        with pytest.raises(ClusterError, match="No Dask scheduler answers at nonsense://"):
            list(each(pow, [(1, 2)], scheduler="nonsense://"))
    monkeypatch.setattr(parallel, "SCHEDULER_SECONDS", 120)  # those below are there, however slow the machine is
    alone: dict[str, Any] = {"cls": Scheduler, "options": {"dashboard_address": ":0"}}
    with monkeypatch.context() as hasty, SpecCluster(scheduler=alone, workers={}) as empty:
        hasty.setattr(parallel, "WORKER_SECONDS", 0.1)
        with pytest.raises(ClusterError, match="has no workers"):
            list(each(pow, [(1, 2)], scheduler=empty.scheduler_address))
    here = os.getpid()
    monkeypatch.setattr(parallel, "version", lambda name: "9.9" if os.getpid() == here else version(name))
    with pytest.raises(ClusterError, match=r"and here is 9\.9"):
        list(each(pow, [(1, 2)], scheduler=cluster))
