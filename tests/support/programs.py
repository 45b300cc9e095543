"""Python programs in tests: processes of their own with which one talks by lines."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Self

from receiving import PATIENCE, readable
from requirement import require

ROOT = Path(__file__).resolve().parents[2]


def require_module(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        require(name, "it is not installed")


def require_loop(name: str) -> None:
    for module in ("gevent", "trio", "uvloop"):
        if module in name.replace("patched", "gevent"):
            require_module(module)


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": paths}


def output_of_example(name: str, segment: str) -> list[str]:
    """What examples/`name` prints, which does not fail."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name],
        env={**environment(), "SEGMENT": segment},
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


class Program:
    """An interpreter for which warnings are errors, and which one talks to by lines."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", *command],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def write(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def lines(self, count: int) -> list[str]:
        """The next ones."""
        assert self._process.stdout is not None
        lines: list[str] = []
        rest = b""
        while len(lines) < count:
            assert readable(self._process.stdout.fileno(), PATIENCE), f"after {lines[-1:]} nothing"
            piece = os.read(self._process.stdout.fileno(), 65536)
            assert piece, f"it ended after {lines[-1:]}: {self._process.communicate()[1]}"
            *complete, rest = (rest + piece).split(b"\n")
            lines += [line.decode() for line in complete]
        assert (len(lines), rest) == (count, b"")
        return lines

    def end(self) -> str:
        """What it prints until its end, which must be a good one."""
        out, err = self._process.communicate(timeout=PATIENCE)
        assert (self._process.returncode, err) == (0, "")
        return out

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def said_by(program: str, *arguments: str) -> Any:
    """What a program prints as JSON."""
    with Program("-c", textwrap.dedent(program), *arguments) as running:
        return json.loads(running.end())
