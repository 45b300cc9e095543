"""Starting a JVM so that Ctrl-C meanwhile leaves none behind.

PySpark starts a shell script that starts a launcher and then becomes the JVM, which ignores SIGINT
and notices only when it is up, seconds later, that it is not wanted any more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_jobs.procfs import stat

_PAUSE_S = 0.001
_GRACE_S = 5.0


def children(parent: int) -> set[int]:
    """Processes whose parent that is now."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {pid for pid in pids if (found := stat(pid)) and found.parent == parent}


def _stop(pid: int) -> None:
    """Stops it, so that it starts no more; a zombie does not either."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    while (found := stat(pid)) is not None and found.state not in ("T", "t", "Z", "X"):
        time.sleep(_PAUSE_S)


def _gone(pid: int) -> bool:
    return (found := stat(pid)) is None or found.state in ("Z", "X")


def _signal(pids: list[int], signo: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signo)


def end_tree(pid: int) -> None:
    """Ends that child of this process and all below it, and waits until they are gone.

    They are asked first: a JVM then removes its temporary files.
    """
    todo, found = [pid], []
    while todo:
        each = todo.pop()
        _stop(each)
        found.append(each)
        todo += children(each)
    _signal(found, signal.SIGTERM)
    _signal(found, signal.SIGCONT)
    deadline = time.monotonic() + _GRACE_S
    while not all(map(_gone, found)) and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    _signal([each for each in found if not _gone(each)], signal.SIGKILL)
    while not all(map(_gone, found)):
        time.sleep(_PAUSE_S)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


@contextmanager
def nothing_left_when_interrupted() -> Iterator[None]:
    """Ends the children that were started within if that ends in KeyboardInterrupt."""
    before = children(os.getpid())
    try:
        yield
    except KeyboardInterrupt:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # cleaning up is left in peace
        for pid in children(os.getpid()) - before:
            end_tree(pid)
        raise
