"""Running a piece of a test in a forked child."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from receiving import PATIENCE, readable


class ChildFailed(Exception):
    """The child raised (its traceback follows), or did not end by itself."""


class ForkedChild:
    """A child by `os.fork()` that calls a function and ends without any of Python's clean-up."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._result, theirs = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(function, theirs)
        os.close(theirs)
        self.pidfd = os.pidfd_open(self.pid)

    @staticmethod
    def _run(function: Callable[[], Any], fd: int) -> None:
        status = 1
        try:
            try:
                answer = (True, function())
            except BaseException:
                answer = (False, traceback.format_exc())
            data = pickle.dumps(answer)
            while data:
                data = data[os.write(fd, data) :]
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
        with os.fdopen(self._result, "rb") as pipe:
            if not readable(self._result, timeout):
                self.join(0)
            data = pipe.read()
        code = self.join(timeout)
        if code != 0:
            raise ChildFailed(f"it ended with status {code}")
        good, value = pickle.loads(data)
        if not good:
            raise ChildFailed(value)
        return value


def in_child(function: Callable[[], Any], timeout: float = PATIENCE) -> Any:
    """What `function()` returns in a forked child."""
    return ForkedChild(function).result(timeout)
