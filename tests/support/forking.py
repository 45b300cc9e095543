"""Running a piece of a test in a forked child."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from receiving import PATIENCE, readable


class ChildFailed(Exception):
    """The child raised (its traceback follows), or did not end by itself."""


class ForkedChild:
    """A child by `os.fork()` that calls a function and ends without any of Python's clean-up."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._pipe, theirs = Pipe(duplex=False)
        self.pid = os.fork()
        if self.pid == 0:
            self._run(function, theirs)
        theirs.close()
        self.pidfd = os.pidfd_open(self.pid)

    @staticmethod
    def _run(function: Callable[[], Any], pipe: Connection) -> None:
        status = 1
        try:
            try:
                answer = (True, function())
            except BaseException:
                answer = (False, traceback.format_exc())
            pipe.send(answer)
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)

    def join(self, timeout: float = PATIENCE) -> int:
        """Its exit status as of `subprocess`; killed when it does not end by itself."""
        late = not readable(self.pidfd, timeout)
        if late:
            os.kill(self.pid, signal.SIGKILL)
        _pid, status = os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        if late:
            raise ChildFailed(f"it did not end within {timeout} s")
        return os.waitstatus_to_exitcode(status)

    def result(self, timeout: float = PATIENCE) -> Any:
        """What the function returned.  Raises `ChildFailed` when it raised, died or hung."""
        with self._pipe:
            if not self._pipe.poll(timeout):
                self.join(0)
            try:
                good, value = self._pipe.recv()
            except EOFError:
                good, value = False, "it ended without a result"
        code = self.join(timeout)
        if code != 0:
            raise ChildFailed(f"it ended with status {code}")
        if not good:
            raise ChildFailed(value)
        return value


def in_child(function: Callable[[], Any], timeout: float = PATIENCE) -> Any:
    """What `function()` returns in a forked child."""
    return ForkedChild(function).result(timeout)
