"""Fixtures: segments with names of their own, connections that are closed, processes that end."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "support"))

import pynotify
from locked import LockHolder
from receiving import TIME_FACTOR
from requirement import missing, require
from sessions import (
    Connect,
    EngineFactory,
    LocalSession,
    NewWorker,
    RemoteSession,
    Session,
    Sessions,
    Worker,
    WorkerPool,
    end_nests,
)

SHARED_MEMORY = Path("/dev/shm")
_PREFIX = f"test-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}-{os.getpid()}-"
_numbers = itertools.count(1)
_terminal_fd = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_terminal_fd] = os.dup(2)  # pytest captures nothing yet
    config.addinivalue_line("markers", "full: takes long; what a quick run may leave out")
    config.addinivalue_line("markers", "spark: needs Spark and a Java virtual machine")
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # a shell's background job; the programs that tests interrupt would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The limits of pytest-timeout, which are against hangs, times PYNOTIFY_TIME_FACTOR."""
    default = float(config.getoption("timeout") or config.getini("timeout"))
    for item in items if TIME_FACTOR != 1 else ():
        marker = item.get_closest_marker("timeout")
        limit = marker.args[0] if marker else default
        item.add_marker(pytest.mark.timeout(limit * TIME_FACTOR), append=False)


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """Ends the process with the stacks of its threads on stderr.

    The plugin's own thread needs the GIL for that, and under xdist its report goes nowhere.
    """
    limit = settings.timeout
    faulthandler.dump_traceback_later(limit, file=item.config.stash[_terminal_fd], exit=True)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer() -> bool:
    faulthandler.cancel_dump_traceback_later()
    return True


def pytest_terminal_summary(terminalreporter: Any) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple)]
    names = missing(reasons)
    if names:
        terminalreporter.write_line(f"not tested, as it was missing: {', '.join(names)}")


@pytest.fixture(scope="session")
def terminal_fd(request: pytest.FixtureRequest) -> int:
    """The real stderr, which pytest does not capture."""
    return request.config.stash[_terminal_fd]


def _end_helpers_of_multiprocessing() -> None:
    """Its own servers, which it leaves to the end of the process."""
    for helper in (forkserver._forkserver, resource_tracker._resource_tracker):
        helper._stop()


def _children() -> set[int]:
    found = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        found.update(int(pid) for pid in listing.read_text().split())
    return found


@pytest.fixture(scope="module", autouse=True)
def collected_are_its_own() -> None:
    """The collector looks at what the tests of a module make, not at all that is imported.

    Tests collect after each of many attempts; with pandas and Spark in the process a look at
    everything takes a third of a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """After the last test: no shared memory of ours, no child process."""
    children = _children()
    yield
    gc.unfreeze()  # plugins of pytest import more at its end, and look at what refers to what
    left = [entry.name for entry in SHARED_MEMORY.glob("pynotify*") if _PREFIX in entry.name]
    assert not left, f"left in {SHARED_MEMORY}: {left}"
    end_nests()
    _end_helpers_of_multiprocessing()
    extra = _children() - children
    assert not extra, f"processes left: {extra}"


@pytest.fixture
def new_name() -> Iterator[Callable[[], str]]:
    """A function that makes names of segments, each of which is unlinked after the test."""
    names: list[str] = []

    def make() -> str:
        names.append(f"{_PREFIX}{next(_numbers)}")
        return names[-1]

    yield make
    for name in names:
        try:
            pynotify.unlink(name, missing_ok=True)
        except pynotify.Error:
            pynotify.unlink(name, missing_ok=True, force=True)
            raise


@pytest.fixture
def segment_name(new_name: Callable[[], str]) -> str:
    return new_name()


@pytest.fixture
def make_engine(new_name: Callable[[], str]) -> Iterator[EngineFactory]:
    """Afterwards each segment must be sound and have no slot in use."""
    factory = EngineFactory(new_name)
    yield factory
    for name, engine in factory.made:
        backends = engine.stat().backends
        report = engine.check()
        engine.close()
        assert not backends, f"slots left in {name}: {backends}"
        assert report.ok, report.problems


@pytest.fixture
def engine(make_engine: EngineFactory) -> pynotify.Engine:
    """A segment with the default options."""
    return make_engine()


@pytest.fixture
def engine_name(make_engine: EngineFactory, engine: pynotify.Engine) -> str:
    return make_engine.name_of(engine)


@pytest.fixture
def connect(make_engine: EngineFactory, request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Connects to `engine`, or to another one; everything is closed afterwards."""
    with contextlib.ExitStack() as stack:

        def make(*, to: pynotify.Engine | None = None, **options: Any) -> pynotify.Connection:
            target = request.getfixturevalue("engine") if to is None else to
            return stack.enter_context(target.connect(**options))

        yield make


@pytest.fixture
def conn(connect: Connect) -> pynotify.Connection:
    return connect()


@pytest.fixture(scope="session")
def worker_pool() -> Iterator[WorkerPool]:
    pool = WorkerPool()
    yield pool
    pool.close()


@pytest.fixture
def new_worker(make_engine: EngineFactory) -> Iterator[NewWorker]:
    """Starts fresh processes; whatever is left of them is ended after the test."""
    workers: list[Worker] = []

    def make(**environment: str) -> Worker:
        workers.append(Worker(**environment))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()


@pytest.fixture
def worker(new_worker: NewWorker) -> Worker:
    return new_worker()


@pytest.fixture
def remote(
    make_engine: EngineFactory, worker_pool: WorkerPool
) -> Iterator[Callable[..., RemoteSession]]:
    """Sessions in other processes."""
    workers: list[Worker] = []

    def make(name: str, **options: Any) -> RemoteSession:
        workers.append(worker_pool.take())
        return RemoteSession(workers[-1], name, **options)

    yield make
    for worker in workers:
        worker_pool.give_back(worker)


@pytest.fixture
def local(make_engine: EngineFactory) -> Iterator[Callable[..., LocalSession]]:
    """Sessions in this process."""
    with contextlib.ExitStack() as stack:

        def make(name: str, **options: Any) -> LocalSession:
            session = LocalSession(name, **options)
            stack.callback(session.close)
            return session

        yield make


@pytest.fixture(params=["one-process", "processes"])
def sessions(request: pytest.FixtureRequest) -> Sessions:
    """``sessions(n)``: n sessions on the test's segment, here or each in its own process."""
    name = request.getfixturevalue("engine_name")
    kind = "local" if request.param == "one-process" else "remote"
    make_one = request.getfixturevalue(kind)

    def make(count: int, **options: Any) -> list[Session]:
        return [make_one(name, **options) for _ in range(count)]

    return make


@pytest.fixture(scope="session")
def nursery() -> Iterator[Worker]:
    """Of the processes that are stopped at a crash point."""
    require("crash-points")
    worker = Worker(PYNOTIFY_CRASHPOINTS="1")
    yield worker
    worker.close()


@pytest.fixture
def lock_holder(nursery: Worker, engine_name: str, tmp_path: Path) -> Iterator[LockHolder]:
    """For the segment of the fixture `engine`."""
    holder = LockHolder(nursery, engine_name, tmp_path / "log")
    yield holder
    holder.close()
