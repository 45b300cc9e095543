"""Short commands are run once for each line of a script: what they must not import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import _cffi_backend
import posix_ipc
import pytest
from console import ROOT, environment

import pynotify

#: Each of these is a tenth of such a command's time, or more.
HEAVY = {
    *("argparse", "asyncio", "cffi", "ctypes", "dataclasses", "enum", "importlib.metadata"),
    *("inspect", "json", "locale", "logging", "numpy", "pathlib", "re", "shutil", "subprocess"),
    *("tempfile", "traceback", "typing"),
}
OURS = {"pynotify._connection", "pynotify._engine", "pynotify._types", "pynotify.topics"}
PROGRAM = """
import sys
sys.path[:0] = sys.argv.pop(1).split(":")
sys.argv[0] = "pynotify"
from pynotify.cli.main import main
status = main()
print(*sys.modules, sep="\\n", file=sys.stderr)
sys.exit(status)
"""
#: Without site, since what an editable installation puts there imports half of the above.
PLACES = [*(str(Path(each.__file__).parent) for each in (_cffi_backend, posix_ipc))]


def installation(place: Path) -> str:
    """The package as an installation has it: with its metadata beside it."""
    (place / "pynotify").symlink_to(ROOT / "pynotify")
    (place / f"pynotify_ipc-{pynotify.__version__}.dist-info").mkdir()
    return str(place)


def imported_by(place: Path, *words: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM, ":".join([installation(place), *PLACES]), *words],
        env={k: v for k, v in environment().items() if not k.startswith("PYTHON")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["ls"]], ids=" ".join)
def test_short_commands(words: list[str], tmp_path: Path) -> None:
    imported = imported_by(tmp_path, *words)
    assert "pynotify._native" in imported or "pynotify._native_crash" in imported
    assert imported & HEAVY == set()
    assert imported & OURS == set()


def test_notify(new_name: Callable[[], str], tmp_path: Path) -> None:
    name = new_name()
    with pynotify.connect(name) as conn:
        conn.listen("c")
        imported = imported_by(tmp_path, "notify", "c", "payload", "-n", name)
        assert [note.payload for note in conn.poll()] == ["payload"]
    assert imported & HEAVY == set()
    assert imported & OURS == set()


#: Without site, with the places of what the package needs first, as the program of that name.
IMPORT = """
import sys
sys.path[:0] = sys.argv[2].split(":")
sys.argv[0] = sys.argv[1]
import pynotify
print(*sys.modules)
"""


def imported_as(program: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-S", "-c", IMPORT, program, ":".join([str(ROOT), *PLACES])],
        env={k: v for k, v in environment().items() if not k.startswith("PYTHON")},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("program", ["/usr/bin/pynotify", "-m"])
def test_a_command_imports_next_to_nothing(program: str) -> None:
    assert imported_as(program) & (HEAVY | OURS) == set()


def test_a_program_has_all_that_it_needs() -> None:
    """Later it may have another user, which cannot read it, or another root."""
    imported = imported_as("/srv/app.py")
    assert {*OURS, "logging", "signal", "dataclasses"} <= imported
    assert "asyncio" not in imported and "numpy" not in imported
