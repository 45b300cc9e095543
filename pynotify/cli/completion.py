"""`pynotify completion`: what bash and zsh complete."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

_FILES = {"bash": "pynotify", "zsh": "_pynotify"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "shell", choices=tuple(_FILES), help='in ~/.bashrc: eval "$(pynotify completion bash)"'
    )


def run(options: argparse.Namespace) -> int:
    """Print it."""
    directory = Path(__file__).with_name("shell")
    print((directory / _FILES[options.shell]).read_text(encoding="utf-8"), end="")
    return 0
