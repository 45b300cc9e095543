"""Sub-interpreters (mod_wsgi's, or Python's own), and free-threaded builds: both are refused."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from types import ModuleType

import pytest

from listening import hear, listen
from programs import ROOT, environment
from requirement import require
from serving import Notifier
from sessions import Worker

TRY = """
import os, sys
try:
    import pynotify
    text = "imported"
except ImportError as error:
    text = str(error)
loaded = sorted(name for name in sys.modules if name.startswith("pynotify._n"))
os.write({fd}, f"{{text}}\\n{{loaded}}".encode())
"""


def interpreters() -> ModuleType | None:
    """The module that makes them, whose name depends on the version of Python."""
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def import_in_another() -> list[str] | None:
    """What an import there said, and what it loaded of the core."""
    module = interpreters()
    if module is None:
        return None
    reading, writing = os.pipe()
    another = module.create()
    module.run_string(another, TRY.format(fd=writing))
    module.destroy(another)
    os.close(writing)
    with open(reading, encoding="utf-8") as file:
        return file.read().splitlines()


def test_sub_interpreter_is_refused(engine_name: str, worker: Worker, notifier: Notifier) -> None:
    worker.call(listen, engine_name)
    for message in ("before", "after"):
        said = worker.call(import_in_another)
        if said is None:
            require("sub-interpreters", "this Python has no module for them")
        text, loaded = said
        assert text.startswith("pynotify cannot be used in a sub-interpreter")
        assert loaded == "[]"
        worker.start(hear, 1)
        notifier.notify(message)
        assert worker.result() == [message]


@pytest.mark.parametrize("flags", ["t", "td"])
def test_a_free_threaded_build_is_refused(flags: str) -> None:
    """As one would say that it is; nothing of the core is loaded, and setup.py builds nothing."""
    program = f"import sys; sys.abiflags = {flags!r}\n" + TRY.format(fd=1)
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    text, loaded = said.stdout.splitlines()
    assert text.startswith("pynotify cannot be used with a free-threaded build of Python")
    assert loaded == "[]"
    loaded = "import runpy, setuptools.command.build_ext, sys"
    building = f"{loaded}; sys.abiflags = {flags!r}; runpy.run_path('setup.py')"
    command = [sys.executable, "-c", building]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.returncode == 1
    assert said.stderr.startswith("pynotify cannot be built for a free-threaded Python")
