"""The processes behind `sessions.Worker`: each calls what it is told, answers with the result.

Started as ``python session_worker.py FD``; FD is its end of a pipe.  It imports, and then forks
workers when it is told to, each with a pipe of its own.  All of them end when the other end of
their pipe does.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import signal
import sys
from multiprocessing.connection import Connection as Pipe
from multiprocessing.reduction import recv_handle
from pathlib import Path
from pickle import PicklingError
from types import ModuleType
from typing import Any

PRELOADED = ("pytest", "pynotify", "numpy")
"""Whatever a test's module imports besides comes with it."""


def describe(error: BaseException) -> tuple[str, str, str, Any, Any]:
    kind = type(error)
    sqlstate, hint = getattr(error, "sqlstate", None), getattr(error, "hint", None)
    return kind.__module__, kind.__qualname__, str(error), sqlstate, hint


def answer(pipe: Pipe) -> bool:
    try:
        function, arguments, options = pipe.recv()
    except EOFError:
        return False
    try:
        result = ("result", function(*arguments, **options))
    except Exception as error:
        result = ("error", describe(error))
    try:
        pipe.send(result)
    except (PicklingError, TypeError, AttributeError) as error:
        pipe.send(("error", describe(error)))
    return True


def prepare() -> None:
    """What a worker would do first, done once."""
    faulthandler.enable()
    # A parent whose last connection is closed ignores it, and that is inherited.
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    sys.path.insert(0, str(Path(__file__).parents[1]))  # as conftest.py does
    # pytest imports test modules as tests.test_*, and pickle looks for their functions there.
    package = ModuleType("tests")
    package.__path__ = [str(Path(__file__).parents[1])]
    sys.modules["tests"] = package
    for module in PRELOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # the collector looks at what a test makes


def work(pipe: Pipe) -> None:
    while answer(pipe):
        pass


def serve(pipe: Pipe) -> Pipe | None:
    """Fork, and reap what was forked, as told; in a worker, its pipe."""
    while True:
        try:
            what, argument = pipe.recv()
        except EOFError:
            return None
        if what == "fork":
            handle = recv_handle(pipe)
            pid = os.fork()
            if pid == 0:
                pipe.close()
                return Pipe(handle)
            os.close(handle)
            pipe.send(pid)
        elif what == "reap":
            pipe.send(os.waitstatus_to_exitcode(os.waitpid(argument, 0)[1]))
        elif what == "await stop":
            os.waitid(os.P_PID, argument, os.WSTOPPED)
            pipe.send(True)


def main() -> None:
    prepare()
    worker = serve(Pipe(int(sys.argv[1])))
    if worker is not None:
        work(worker)


if __name__ == "__main__":
    main()
