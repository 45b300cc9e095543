"""docs/cli.md: its `console` blocks are one session, played from the first to the last."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from console import ROOT, environment, run

import pynotify
from pynotify.cli.main import COMMANDS
from receiving import PATIENCE, wait_until

DOCUMENT = ROOT / "docs" / "cli.md"
# What the document calls the segment, the port, and the process of the last listener.
SEGMENT, PORT, PID = "app", "9464", "24636"


class Step(NamedTuple):
    """A command, and what it prints."""

    command: str
    output: str

    @property
    def goes_on(self) -> bool:
        """It runs while the next commands do."""
        return self.command.startswith(("pynotify listen", "pynotify exporter"))


def steps() -> list[Step]:
    found = []
    for block in re.findall(r"^```console\n(.*?)^```\n", DOCUMENT.read_text(), re.S | re.M):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            found.append(Step(command, output))
    return found


class Session:
    """Runs the commands in a shell, with names and numbers that are free."""

    def __init__(self, segment: str, directory: Path) -> None:
        self._segment = segment
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._port = str(server.getsockname()[1])
        self._pid = PID
        self._directory = directory
        self._running: list[tuple[Step, subprocess.Popen[str]]] = []
        script(directory / "pynotify", "from pynotify.cli.main import main\nsys.exit(main())\n")
        script(
            directory / "curl",
            "import urllib.request\n"
            "print(urllib.request.urlopen('http://' + sys.argv[-1]).read().decode())\n",
        )

    def play(self, step: Step) -> None:
        command = re.sub(rf"\b{SEGMENT}\b", self._segment, step.command)
        command = command.replace(PORT, self._port).replace(PID, self._pid)
        self._until_quiet()
        before = self._subscriptions()
        process = subprocess.Popen(
            ["sh", "-c", f"exec {command}" if step.goes_on else command],
            env=environment(PATH=f"{self._directory}{os.pathsep}{os.environ['PATH']}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if not step.goes_on:
            self._compare(step, process.communicate(timeout=PATIENCE)[0])
            return
        self._running.append((step, process))
        if "listen" in step.command:
            wait_until(lambda: self._subscriptions() > before, f"{command} listens")
            self._pid = str(process.pid)
        else:
            assert process.stdout is not None
            self._compare(step, process.stdout.readline())

    def close(self) -> None:
        """End what still runs, and compare what it printed."""
        for step, process in self._running:
            if "listen" in step.command and "--count" not in step.command:
                self._until_quiet()
            if "--count" not in step.command:
                process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=PATIENCE)
            if "listen" in step.command:
                # That one was asked for its stack in between.
                lines = out.splitlines(keepends=True)
                self._compare(step, "".join(x for x in lines if x.startswith(("{", "Async"))))

    def kill(self) -> None:
        for _, process in self._running:
            process.kill()
            process.communicate()

    def _subscriptions(self) -> int:
        try:
            with pynotify.open(self._segment, create=False) as engine:
                return engine.stat().subscriptions
        except pynotify.SegmentNotFound:
            return 0

    def _until_quiet(self) -> None:
        """Until the listeners have read everything, and those that have their count are gone."""

        def quiet() -> bool:
            with pynotify.open(self._segment) as engine:
                return all(row.asleep and not row.lag_bytes for row in engine.stat().backends)

        wait_until(quiet, "all have read")

    def _compare(self, step: Step, printed: str) -> None:
        wanted, got = plain(step.output), plain(printed.replace(self._segment, SEGMENT))
        assert re.fullmatch(pattern(wanted), got), (
            f"$ {step.command}\n{printed}\nnot\n{step.output}"
        )


def script(path: Path, program: str) -> None:
    path.write_text(f"#!{sys.executable}\nimport sys\n{program}")
    path.chmod(0o755)


def plain(text: str) -> str:
    """Without what differs from run to run: numbers, spaces of columns, files."""
    text = re.sub(r"standard error \(.*\)", "standard error (FILE)", text)
    text = re.sub(r"Linux [^:]+:", "Linux N:", text)
    text = re.sub(r"\b(no|\d+) (problem|warning)s?\b", r"N \2s", text)
    text = re.sub(r"\d[\d,.:]*", "N", text)
    return re.sub(r" +", " ", text)


def pattern(text: str) -> str:
    """A line of three dots stands for any lines."""
    return re.sub(r"(?m)^\\\.\\\.\\\.\n", r"(?:.*\n)*?", re.escape(text).replace("\\\n", "\n"))


@pytest.fixture
def session(new_name: Callable[[], str], tmp_path: Path) -> Iterator[Session]:
    made = Session(new_name(), tmp_path)
    yield made
    made.kill()


def test_console_blocks_are_what_happens(session: Session) -> None:
    for step in steps():
        session.play(step)
    session.close()


def test_every_command_is_described() -> None:
    text = DOCUMENT.read_text()
    rows = re.findall(r"^\| `pynotify (\w+)", text, re.M)
    assert rows == list(COMMANDS)
    shown = set(re.findall(r"pynotify (\w+)", "\n".join(step.command for step in steps())))
    # The bridge needs a server: tests/bridge/test_command.py; tests/gateway has the gateway.
    assert shown >= set(COMMANDS) - {"demo", "bridge", "gateway"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_described(command: str) -> None:
    if command == "demo":
        return
    options = set(re.findall(r"--[a-z]+", run(command, "--help").out)) - {"--help", "--name"}
    assert [option for option in options if option not in DOCUMENT.read_text()] == []
