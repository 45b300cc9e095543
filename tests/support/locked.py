"""A process that is stopped while it holds the writer lock of a segment."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from receiving import wait_until
from sessions import Worker
from victims import kill_victim, start_victim, victims_end


class LockHolder:
    """Not there until `hold()`; what wants the lock then waits until `release()`."""

    def __init__(self, nursery: Worker, name: str, log: Path) -> None:
        self._nursery, self._name, self._log = nursery, name, log
        self.pid = 0

    def hold(self) -> None:
        assert not self.pid
        self.pid = self._nursery.call(
            start_victim, "notify_once", self._name, str(self._log), "lock:acquired", stop=True
        )
        wait_until(self._stands, "it stands")

    def _stands(self) -> bool:
        status = Path(f"/proc/{self.pid}/stat").read_text()
        return status.rpartition(") ")[2][0] == "T"

    def release(self) -> None:
        """It goes on, notifies the channel "heard", and ends."""
        pid, self.pid = self.pid, 0
        os.kill(pid, signal.SIGCONT)
        assert self._nursery.call(victims_end, pid) == 0

    def kill(self) -> None:
        """It dies with the lock in its hands."""
        pid, self.pid = self.pid, 0
        assert self._nursery.call(kill_victim, pid) == -signal.SIGKILL

    def close(self) -> None:
        if self.pid:
            self.release()
