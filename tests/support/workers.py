"""Applications with several worker processes on a TCP port, whose clients are in the test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from receiving import PATIENCE, readable, wait_until

ROOT = Path(__file__).resolve().parents[2]
_ADDRESS = re.compile(r"(?:running on|Listening at:) (http://127\.0\.0\.1:\d+)")


class Workers:
    """`python -m COMMAND`, which says on which port of 127.0.0.1 it listens."""

    def __init__(self, directory: Path, *command: str | Path, **environment: str) -> None:
        self._output = directory / "output"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *map(str, command)],
                cwd=directory,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "HOME": str(directory),
                    **environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)

    def said(self) -> str:
        """Its output so far."""
        return self._output.read_text(errors="replace")

    @property
    def url(self) -> str:
        """Where it listens, when it does."""

        def find() -> bool:
            if readable(self._pidfd):
                raise RuntimeError(f"the server ended\n{self.said()}")
            return _ADDRESS.search(self.said()) is not None

        wait_until(find, "the server listens")
        found = _ADDRESS.search(self.said())
        assert found
        return found[1]

    def close(self) -> None:
        """SIGTERM; whatever does not end by itself is killed."""
        if self._process.returncode is None:
            self._process.terminate()
            ended = readable(self._pidfd, PATIENCE)
            # Not after it is reaped, as the group's number is its own until then.
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            assert ended, f"the server did not end\n{self.said()}"
        os.close(self._pidfd)
