"""What all commands have in common: usage, exit status, where errors go."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from collections.abc import Callable

import pytest
from console import COMMAND, ROOT, environment, run

import pynotify
from pynotify.cli.main import COMMANDS


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_names_every_command(word: str) -> None:
    done = run(word)
    assert done.status == 0
    assert [name for name in COMMANDS if f"\n  {name} " not in done.out] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    done = run(command, "--help")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("usage: ")


def test_version() -> None:
    done = run("--version")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (done.status, done.out) == (0, f"pynotify {version}\n")
    assert pynotify.__version__ == version


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["frobnicate"],
        ["listen"],
        ["notify"],
        ["notify", "c", "two", "words"],
        ["notify", "c", "payload", "--lines"],
        ["notify", "c", "--lines", "--listeners"],
        ["listen", "c", "--count", "0"],
        ["listen", "c", "--timeout", "nan"],
        ["listen", "c", "--timeout", "-1"],
        ["top", "--interval", "0"],
        ["top", "--once", "--count", "3"],
        ["rm"],
        ["stat", "a", "b"],
        ["doctor", "--rate", "10"],
        ["doctor", "--stack", "1", "app"],
        ["exporter"],
        ["exporter", "--port", "65536"],
        ["bench", "--payload", "-1"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_status_2(words: list[str]) -> None:
    done = run(*words)
    assert done.status == 2
    assert done.out == ""
    assert "usage: pynotify" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("command", ["stat", "top", "rm", "doctor"])
def test_missing_segment_is_status_1(command: str, new_name: Callable[[], str]) -> None:
    name = new_name()
    done = run(command, name)
    assert done.status == 1
    assert f'segment "{name}" does not exist' in done.out + done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("command", ["stat", "top", "rm", "listen", "notify"])
def test_bad_segment_name_is_status_1(command: str) -> None:
    words = ["c", "--name"] if command in ("listen", "notify") else []
    done = run(command, *words, "a/b\x1b[31m")
    assert done.status == 1
    assert done.out == ""
    assert "bad segment name" in done.err
    assert "\x1b" not in done.err


def test_an_unknown_commands_name_is_escaped() -> None:
    assert "\x1b" not in run("\x1b]0;evil\x07").err


def test_full_disk_is_status_1() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "ls"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
            check=False,
        )
    assert done.returncode == 1
    assert b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


def test_closed_output_is_status_1() -> None:
    done = subprocess.run(
        ["sh", "-c", f"'{sys.executable}' -m pynotify ls >&-"],
        stderr=subprocess.PIPE,
        env=environment(),
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == b"pynotify ls: standard output is closed\n"


def test_the_library_needs_nothing_of_the_command_line() -> None:
    code = "import sys, pynotify; print([m for m in sys.modules if m.startswith('pynotify.c')])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, check=True
    )
    assert done.stdout == b"[]\n"


def test_declared_script_is_main() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["pynotify"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))
