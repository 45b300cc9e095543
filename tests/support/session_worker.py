"""The process behind `sessions.Worker`: calls what it is told, answers with the result.

Started as ``python session_worker.py FD``; FD is its end of a pipe.  It ends when the other end
of the pipe does.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from pickle import PicklingError
from types import ModuleType
from typing import Any


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


def main() -> None:
    faulthandler.enable()
    # A parent whose last connection is closed ignores it, and that is inherited.
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    sys.path.insert(0, str(Path(__file__).parents[1]))  # as conftest.py does
    # pytest imports test modules as tests.test_*, and pickle looks for their functions there.
    package = ModuleType("tests")
    package.__path__ = [str(Path(__file__).parents[1])]
    sys.modules["tests"] = package
    pipe = Pipe(int(sys.argv[1]))
    while answer(pipe):
        pass


if __name__ == "__main__":
    main()
