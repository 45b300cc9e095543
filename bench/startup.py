"""What a command of the command line costs before it does anything: processor time of the process.

An environment is made as pip makes one of a wheel: nothing in it but pynotify and what it needs,
compiled to bytecode, and the script that pip writes.  An editable checkout is slower by what its
import hook costs.  User and system time of each process, from its start to its end, beside a Python
of the same environment that does nothing: that is the floor, and nothing of it is ours.
"""

from __future__ import annotations

import compileall
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import venv
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pynotify
from bench.figures import Spread
from bench.pairs import alternate
from bench.settings import Settings

TOPIC = "startup"
UNIT = "ms"

_RUNS = 51
_BAR = 30
_IMPORT_BAR = 60
_NOTHING = "python -c pass"
_NEEDED = ("cffi", "_cffi_backend", "posix_ipc", "numpy")
_SCRIPT = """#!{python}
import sys
from pynotify.cli.main import main
if __name__ == '__main__':
    sys.argv[0] = sys.argv[0].removesuffix('.exe')
    sys.exit(main())
"""


class Installation:
    """An environment with pynotify in it, as of a wheel."""

    def __init__(self, place: Path) -> None:
        venv.create(place, with_pip=False, symlinks=True)
        (packages,) = place.glob("lib/python*/site-packages")
        self.python = str(place / "bin" / "python")
        self.script = str(place / "bin" / "pynotify")
        source = Path(pynotify.__file__).parent
        shutil.copytree(
            source,
            packages / "pynotify",
            ignore=shutil.ignore_patterns("__pycache__", "_native_crash*"),
        )
        compileall.compile_dir(packages / "pynotify", quiet=1)
        for name in _NEEDED:
            (packages / _place_of(name).name).symlink_to(_place_of(name))
        metadata = packages / f"pynotify_ipc-{pynotify.__version__}.dist-info"
        metadata.mkdir()
        said = importlib.metadata.distribution("pynotify-ipc").read_text("METADATA")
        (metadata / "METADATA").write_text(said or "", encoding="utf-8")
        Path(self.script).write_text(_SCRIPT.format(python=self.python), encoding="utf-8")
        Path(self.script).chmod(0o755)
        self._place = place
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
        }

    def spent(self, command: Sequence[str]) -> float:
        """Milliseconds of user and system time."""
        process = subprocess.Popen(
            command,
            cwd=self._place,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)}: status {process.returncode}")
        return 1e3 * (usage.ru_utime + usage.ru_stime)


def _place_of(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    origin = Path(spec.origin)
    return origin.parent if origin.name == "__init__.py" else origin


def run(settings: Settings) -> None:
    """Commands, imports, and Python alone."""
    name = f"bench-startup-{os.getpid()}"
    installed = Installation(settings.directory / "startup")
    script, python = installed.script, installed.python
    cases: list[tuple[str, list[str], float | None]] = [
        ("pynotify --version", [script, "--version"], _BAR),
        ("pynotify --help", [script, "--help"], _BAR),
        ("pynotify ls", [script, "ls"], _BAR),
        ("pynotify notify CH x -n NAME", [script, "notify", "ch", "x", "-n", name], _BAR),
        ("python -m pynotify ls", [python, "-m", "pynotify", "ls"], _BAR),
        ("pynotify stat NAME", [script, "stat", name], None),
        ("import pynotify", [python, "-c", "import pynotify"], _IMPORT_BAR),
        ("all names imported", [python, "-c", "from pynotify import *"], None),
        ("one connection", [python, "-c", _connecting(name)], _IMPORT_BAR),
        ("python -S -c pass", [python, "-S", "-c", "pass"], None),
    ]
    with ExitStack() as stack:
        stack.callback(pynotify.unlink, name, missing_ok=True)
        pynotify.open(name).close()
        commands = [[python, "-c", "pass"], *(command for _, command, _ in cases)]
        passes = [partial(installed.spent, command) for command in commands]
        floor, *values = alternate(passes, settings.pairs(_RUNS))
    for (title, _, bar), spent in zip(cases, values, strict=True):
        settings.alone(
            TOPIC,
            title,
            UNIT,
            spent,
            against=_NOTHING,
            peer=Spread.of(floor),
            bar=bar,
            at_most=True,
        )


def _connecting(name: str) -> str:
    return f"import pynotify; pynotify.connect({name!r}).notify('ch', 'x')"
