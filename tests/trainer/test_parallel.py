"""Work on a real Dask cluster of two processes: done there, at the same time, and never waited for in vain."""

from __future__ import annotations

import os
import signal
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from distributed import LocalCluster, Scheduler, SpecCluster
from threadpoolctl import threadpool_info

from edge.errors import ClusterError
from trainer import parallel
from trainer.parallel import each


def meet(own: Path, other: Path) -> int:
    """Returns only if the other is at work at the same time."""
    own.touch()
    until = time.monotonic() + 60
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


def close_when_called(number: int, file: Path) -> int:
    file.touch()
    time.sleep(60 if number else 0)
    return number


def test_a_cluster_that_goes_away_is_said(tmp_path: Path) -> None:
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as local:
        results = each(close_when_called, [(i, tmp_path / "x") for i in range(3)], scheduler=local.scheduler_address)
        assert next(results) == 0
        local.close()
        with pytest.raises(ClusterError, match="is gone"):
            list(results)


def test_no_scheduler_no_workers_other_workers(monkeypatch: pytest.MonkeyPatch, cluster: str) -> None:
    monkeypatch.setattr(parallel, "PATIENCE_SECONDS", 1)
    with pytest.raises(ClusterError, match=r"No Dask scheduler answers at tcp://127\.0\.0\.1:1"):
        list(each(pow, [(1, 2)], scheduler="tcp://127.0.0.1:1"))
    with pytest.raises(ClusterError, match="No Dask scheduler answers at nonsense://"):
        list(each(pow, [(1, 2)], scheduler="nonsense://"))
    alone: dict[str, Any] = {"cls": Scheduler, "options": {"dashboard_address": ":0"}}
    with SpecCluster(scheduler=alone, workers={}) as empty, pytest.raises(ClusterError, match="has no workers"):
        list(each(pow, [(1, 2)], scheduler=empty.scheduler_address))
    here = os.getpid()
    monkeypatch.setattr(parallel, "version", lambda name: "9.9" if os.getpid() == here else version(name))
    with pytest.raises(ClusterError, match=r"and here is 9\.9"):
        list(each(pow, [(1, 2)], scheduler=cluster))
