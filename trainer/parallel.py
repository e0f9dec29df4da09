"""Run many independent calls at once: on the cores of this machine, or on a Dask cluster. Each call has one BLAS thread.

Dask is called directly: the Dask backend of joblib waits forever for a call whose workers die.
"""

import itertools
import os
import signal
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, TypeVar

import numpy as np
from joblib import Parallel, cpu_count, delayed, parallel_config
from threadpoolctl import threadpool_limits

from edge.errors import ClusterError, UsageError

SCHEDULER_SECONDS, WORKER_SECONDS = 10.0, 10.0  # timeouts: for the answer of the scheduler, and then for the first worker
MIN_WINDOW = 16  # calls that are submitted to a cluster at once, at least; or four for each thread of its workers
ALIGNMENT = 16  # bytes, of every array that NumPy makes
SHARED_BYTES = 4096  # larger arrays are sent to a cluster once, not with every call

Calls = Iterable[tuple[Any, ...]]
One = TypeVar("One")
Result = TypeVar("Result")


def in_threads(function: Callable[[One], Result], inputs: Iterable[One]) -> list[Result]:
    """Return function(one) for every input, in their order. The function must release the interpreter, as onnxruntime does.

    There is a thread for each core, or as many as OMP_NUM_THREADS says: one inside the processes of `each`.
    """
    with ThreadPoolExecutor(int(os.environ.get("OMP_NUM_THREADS") or cpu_count())) as threads:
        return list(threads.map(function, inputs))


def each(
    function: Callable[..., Any],
    calls: Calls,
    *,
    shared: tuple[Any, ...] = (),
    jobs: int = -1,
    scheduler: str | None = None,
    ordered: bool = True,
) -> Iterator[Any]:
    """Yield function(*call, *shared) for every call, in their order or as they finish.

    `jobs` is the number of processes here, -1 for all cores. With a `scheduler`, all its workers are used instead. Large
    arrays are sent to a cluster once: those of `shared` or, if there are none, those of the calls. Calls are read a few at a
    time, so they may be read from a disk.
    """
    if jobs == 0:
        raise UsageError("0 processes cannot do any work.", "Choose 1 or more, or -1 for all cores.")
    if scheduler is not None:
        yield from _on_cluster(function, calls, shared, scheduler, ordered)
        return
    tasks = (delayed(_with_one_thread)(function, *call, *shared) for call in calls)
    with parallel_config("loky", inner_max_num_threads=1), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* tasks which were still being processed")  # the caller may stop early
        with sigint_ignored():  # the workers start here and inherit this: on Ctrl-C they print no traceback
            results = Parallel(n_jobs=jobs, return_as="generator" if ordered else "generator_unordered")(tasks)
        yield from results


@contextmanager
def sigint_ignored() -> Iterator[None]:
    """Ignore SIGINT. Only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _with_one_thread(function: Callable[..., Any], *call: Any) -> Any:
    with threadpool_limits(1):  # one core per call: small problems gain nothing from more
        return function(*map(_aligned, call))


def _aligned(value: Any) -> Any:
    """Return an array at a usual address: messages put arrays anywhere, and there NumPy adds numbers in another order."""
    is_odd = isinstance(value, np.ndarray) and value.ctypes.data % ALIGNMENT != 0
    return np.array(value) if is_odd else value


def _on_cluster(
    function: Callable[..., Any], calls: Calls, shared: tuple[Any, ...], scheduler: str, ordered: bool
) -> Iterator[Any]:
    try:
        from distributed import Client
        from distributed.scheduler import KilledWorker
    except ImportError:
        raise ClusterError("--scheduler needs Dask.", "Run `pip install 'dask[distributed]'`.") from None
    try:
        client = Client(scheduler, timeout=SCHEDULER_SECONDS, set_as_default=False)
    except (OSError, ValueError):
        start = "Start one with `dask scheduler`; it prints its address."
        raise ClusterError(f"No Dask scheduler answers at {scheduler}.", start) from None
    sent: dict[int, tuple[Any, Any]] = {}  # by id, which stays unique because the array is kept beside its future

    def sent_once(value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.nbytes <= SHARED_BYTES:
            return value
        if id(value) not in sent:
            # The result of a task, not scattered data: the scheduler makes it again if the worker that holds it dies.
            sent[id(value)] = value, client.submit(np.asarray, value, pure=False)
        return sent[id(value)][1]

    def submit(number: int, call: tuple[Any, ...]) -> Any:
        own = map(_in_memory, call) if shared else map(sent_once, call)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            arguments = function, *own, *map(sent_once, shared)
            return client.submit(_with_one_thread, *arguments, pure=False, priority=-number)

    try:
        _check_workers(client, scheduler)
        submitted = (submit(number, call) for number, call in enumerate(calls))
        window = max(MIN_WINDOW, 4 * sum(client.nthreads().values()))
        yield from _results(submitted, window, client.loop, ordered)
    except KilledWorker:
        raise ClusterError("Several workers died on the same call.", "Give the workers more memory.") from None
    except (CancelledError, OSError):
        raise ClusterError(f"The cluster at {scheduler} is gone.", "Start it and this command again.") from None
    finally:
        client.close()


def _results(submitted: Iterator[Any], window: int, loop: Any, ordered: bool) -> Iterator[Any]:
    """Yield the results of futures, with at most `window` of them submitted at once."""
    from distributed import as_completed

    running = deque(itertools.islice(submitted, window))
    if ordered:
        while running:
            result = running.popleft().result()
            running.extend(itertools.islice(submitted, 1))
            yield result
        return
    finished = as_completed(list(running), loop=loop)
    running.clear()
    for future in finished:
        result = future.result()
        for following in itertools.islice(submitted, 1):
            finished.add(following)
        yield result


def _in_memory(value: Any) -> Any:
    """Return an array of a file as one in memory: the file is not on the workers."""
    return np.array(value) if isinstance(value, np.memmap) else value


def _check_workers(client: Any, scheduler: str) -> None:
    """Reject a cluster without workers, or with another version of lclrr-edge."""
    here = version("lclrr-edge")
    try:
        client.wait_for_workers(1, timeout=WORKER_SECONDS)
        theirs = set(client.run(version, "lclrr-edge").values())
    except TimeoutError:
        raise ClusterError(f"{scheduler} has no workers.", f"Start some with `dask worker {scheduler}`.") from None
    except ModuleNotFoundError:
        raise ClusterError("A worker lacks lclrr-edge.", "Install it with the extras trainer and cluster on all.") from None
    if theirs != {here}:
        versions = f"The workers have lclrr-edge {', '.join(sorted(theirs))}; this machine has {here}."
        raise ClusterError(versions, "Install the same version on all.")
