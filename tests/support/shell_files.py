"""What the shells and man(1) read of the command line: `make shell` writes it, a test compares it.

    python tests/support/shell_files.py

shtab makes the completions and argparse-manpage the manual page, both of the parsers that parse.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import shtab

from pynotify.cli.main import DESCRIPTION
from pynotify.cli.whole import PREAMBLE, whole

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = ROOT / "pynotify" / "cli" / "shell"


def files() -> dict[str, str]:
    """The texts by the names under which the shells look for them."""
    return {
        "pynotify": shtab.complete(whole(), "bash", preamble=PREAMBLE),
        "_pynotify": shtab.complete(whole(), "zsh", preamble=PREAMBLE),
        "pynotify.1": _manual(),
    }


def _manual() -> str:
    """Without a date, which would be that of the machine that made it."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "pynotify.1"
        subprocess.run(
            [
                *(str(Path(sys.executable).with_name("argparse-manpage")), "--output", str(path)),
                *("--module", "pynotify.cli.whole", "--function", "whole"),
                *("--project-name", "pynotify", "--prog", "pynotify", "--version", version),
                *("--description", DESCRIPTION, "--manual-title", "User Commands"),
            ],
            check=True,
            cwd=ROOT,
        )
        text = path.read_text()
    text = re.sub(r'^(\.TH PYNOTIFY "1") "[^"]*"', r'\1 ""', text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


if __name__ == "__main__":
    for name, text in files().items():
        (DIRECTORY / name).write_text(text)
