"""The whole command line as one parser.

The shells' completions and the manual page are made of it (`make shell`).  `main` does without:
it imports a command when that one is called for.
"""

from __future__ import annotations

import argparse
import importlib

from pynotify.cli import topics
from pynotify.cli.commands import COMMANDS
from pynotify.cli.main import DESCRIPTION

_ENDING = """Exit status: 0 done, 1 it could not be done or a problem was found, 2 wrong usage,
130 after Ctrl-C."""

#: The functions of the shells that list segments; _PREAMBLE has them.
_SEGMENTS = {"bash": "_pynotify_segments", "zsh": "_pynotify_segments"}
_LIST = r'(cd /dev/shm && printf "%s\n" pynotify."${EUID}".*) | sed -n "s/^pynotify\.[0-9]*\.//p"'
PREAMBLE = {
    "bash": f"""
_pynotify_segments() {{
  compgen -W "$({_LIST} | grep -vxF '*')" -- "$1"
}}
""",
    "zsh": f"""
_pynotify_segments() {{
  local -a names
  names=(${{(f)"$({_LIST.replace(".*)", ".*(N))")})"}})
  _describe segment names
}}
""",
}


def whole() -> argparse.ArgumentParser:
    """Every command with its arguments, and the actions of `topics`."""
    parser = argparse.ArgumentParser("pynotify", description=DESCRIPTION, epilog=_ENDING)
    parser.add_argument("-V", "--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = importlib.import_module(f"pynotify.cli.{name}")
        one = commands.add_parser(name, help=summary, description=summary)
        if name == "topics":
            of_topics = one.add_subparsers(metavar="ACTION")
            for word, action in topics.actions():
                below = of_topics.add_parser(word, help=action.summary, description=action.summary)
                action.add_arguments(below)
                _complete(below)
        elif name != "demo":  # its arguments are those of python -m pynotify.demo
            command.add_arguments(one)
            _complete(one)
    return parser


def _complete(parser: argparse.ArgumentParser) -> None:
    for argument in parser._actions:  # noqa: SLF001, argparse has no other list of them
        if argument.dest in ("name", "names"):
            argument.complete = _SEGMENTS  # type: ignore[attr-defined]
