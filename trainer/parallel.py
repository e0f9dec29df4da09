"""Many independent calls at once: on the cores of this machine, or on a Dask cluster. One BLAS thread each."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

from joblib import Parallel, delayed, parallel_config
from threadpoolctl import threadpool_limits

from edge.errors import ClusterError, UsageError

SCHEDULER_SECONDS, WORKER_SECONDS = 10.0, 10.0
"""How long a scheduler may take to answer, and then a first worker to be there."""


def each(
    function: Callable[..., Any],
    calls: Iterable[tuple[Any, ...]],
    *,
    jobs: int = -1,
    scheduler: str | None = None,
    ordered: bool = True,
) -> Iterator[Any]:
    """function(*call) of every call, in their order or as they are done. With a scheduler, `jobs` is what its workers have."""
    if jobs == 0:
        raise UsageError("Nothing is done by 0 processes.", "Choose 1 or more, or -1 for all cores.")
    tasks = (delayed(_with_one_thread)(function, *call) for call in calls)
    with _where(scheduler), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* tasks which were still being processed")  # who stops on the way knows that
        with _deaf_to_ctrl_c():  # workers are started here; whoever stops the command ends them
            results = Parallel(n_jobs=jobs, return_as="generator" if ordered else "generator_unordered")(tasks)
        yield from results


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """What is started meanwhile never hears it: a worker would answer with a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _with_one_thread(function: Callable[..., Any], *call: Any) -> Any:
    with threadpool_limits(1):  # a core each: small problems gain nothing from more
        return function(*call)


@contextmanager
def _where(scheduler: str | None) -> Iterator[None]:
    if scheduler is None:
        with parallel_config("loky", inner_max_num_threads=1):
            yield
        return
    client = _client(scheduler)
    try:
        _refuse_strange_workers(client, scheduler)
        with parallel_config(_backend(client)):
            yield
    except (CancelledError, OSError):
        raise ClusterError(f"The cluster at {scheduler} is gone.", "Start it again, and this command.") from None
    finally:
        client.close()


def _backend(client: Any) -> Any:
    """joblib's own, mended: it never tells of a call that Dask gave up, so that one would wait for it without end; it leaves
    the work of a cluster with a single thread to this machine; and it gives an array to one worker, with whom it is lost.
    """
    from distributed.scheduler import KilledWorker
    from joblib._dask import DaskDistributedBackend

    class Backend(DaskDistributedBackend):
        def submit(self, func: Any, callback: Any = None) -> Any:
            def told(future: Any) -> None:
                error = future.exception()
                if isinstance(error, KilledWorker):
                    error = ClusterError("Worker after worker died on the same work.", "Give them more memory.")
                if error is not None:
                    callback(error)

            future = super().submit(func, callback)
            future.add_done_callback(told)
            return future

        def effective_n_jobs(self, n_jobs: int) -> int:
            return max(2, super().effective_n_jobs(n_jobs))

    client.scatter = partial(client.scatter, broadcast=True)
    return Backend(client=client)


def _client(scheduler: str) -> Any:
    try:
        from distributed import Client
    except ImportError:
        raise ClusterError("A cluster takes Dask, which is not installed.", "Install lclrr-edge[cluster].") from None
    try:
        return Client(scheduler, timeout=SCHEDULER_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError):
        raise ClusterError(
            f"No Dask scheduler answers at {scheduler}.", "Start one with `dask scheduler`; it says its address."
        ) from None


def _refuse_strange_workers(client: Any, scheduler: str) -> None:
    """Workers that cannot compute what is computed here."""
    try:
        client.wait_for_workers(1, timeout=WORKER_SECONDS)
        theirs = set(client.run(version, "lclrr-edge").values())
    except TimeoutError:
        raise ClusterError(f"{scheduler} has no workers.", f"Start some with `dask worker {scheduler}`.") from None
    except ModuleNotFoundError:
        raise ClusterError("A worker lacks lclrr-edge.", "Install lclrr-edge[trainer,cluster] on every worker.") from None
    if theirs != {version("lclrr-edge")}:
        raise ClusterError(
            f"The workers have lclrr-edge {', '.join(sorted(theirs))}, and here is {version('lclrr-edge')}.",
            "Install the same on all.",
        )
