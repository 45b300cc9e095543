"""`python -m pynotify` in a process of its own, behind pipes or on a terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

from receiving import PATIENCE, readable

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "pynotify"]


def environment(**more: str) -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    unwanted = ("NO_COLOR", "PYTHONUNBUFFERED")
    plain = {name: value for name, value in os.environ.items() if name not in unwanted}
    return plain | {"PYTHONPATH": paths, "TERM": "xterm"} | more


def as_shells_start_it() -> None:
    """A parent whose last connection is closed ignores it, and that is inherited."""
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Done:
    """How a command ended."""

    def __init__(self, status: int, out: bytes, err: bytes) -> None:
        self.status, self.raw = status, out
        self.out, self.err = (text.decode(errors="backslashreplace") for text in (out, err))


def run(*words: str | bytes, stdin: bytes = b"", **more: str) -> Done:
    """Run a command to its end.

    Without a name some look at all segments, also at those that other tests have just broken:
    a stuck one takes ten seconds.
    """
    done = subprocess.run(
        [*COMMAND, *words],
        input=stdin,
        capture_output=True,
        env=environment(**more),
        timeout=4 * PATIENCE,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


class Running:
    """A command whose output is read as it comes."""

    def __init__(self, *words: str, command: list[str] = COMMAND, **more: str) -> None:
        self._process = subprocess.Popen(
            [*command, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(**more),
            start_new_session=True,
        )
        self.pid = self._process.pid

    def line(self, *, err: bool = False) -> bytes:
        """The next line, without its end."""
        stream = self._process.stderr if err else self._process.stdout
        assert stream is not None
        return stream.readline().removesuffix(b"\n")

    def hang_up(self) -> None:
        """Stop reading its output."""
        assert self._process.stdout is not None
        self._process.stdout.close()

    def send(self, text: bytes) -> None:
        """To its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(text)
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def finish(self) -> Done:
        """Wait for its end."""
        assert self._process.stdout is not None
        if self._process.stdout.closed:
            self._process.stdout = None
        out, err = self._process.communicate(timeout=PATIENCE)
        return Done(self._process.returncode, out or b"", err)

    def close(self) -> None:
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)  # its own group: it may be a shell with children
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


class Guest(Running):
    """Another program, which has `conn`, a connection to the segment.

    It is ready when this returns, and ends with its standard input.
    """

    def __init__(self, segment: str, program: str, **more: str) -> None:
        text = (
            "import signal, sys, threading\n"
            "import pynotify\n"
            f"conn = pynotify.connect({segment!r})\n"
            f"{program}\n"
            "print('ready', flush=True)\n"
            "sys.stdin.read()\n"
        )
        super().__init__(text, command=[sys.executable, "-c"], **more)
        assert self.line() == b"ready"


class Terminal:
    """A command on a terminal of its own, with a keyboard."""

    def __init__(self, *words: str, **more: str) -> None:
        everything = environment(**more)
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            try:
                as_shells_start_it()
                os.execve(COMMAND[0], [*COMMAND, *words], everything)
            finally:
                os._exit(127)
        self.seen = b""
        self._status: int | None = None

    def read_until(self, text: bytes) -> bytes:
        """Everything since the last call, up to and with `text`."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.seen:
            if not self._read(deadline):
                raise TimeoutError(f"{text!r} never came: {self.seen!r}")
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def finish(self) -> int:
        """Read to its end; its exit status as of `subprocess`, the rest in `seen`."""
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline):
            pass
        return self._reap()

    def _read(self, deadline: float) -> bool:
        if not readable(self._master, max(0.0, deadline - time.monotonic())):
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # EIO: the other side is closed
            data = b""
        self.seen += data
        return bool(data)

    def _reap(self) -> int:
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status

    def close(self) -> None:
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            self._reap()
        os.close(self._master)
