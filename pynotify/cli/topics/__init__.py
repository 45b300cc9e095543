"""`pynotify topics ACTION ...`: look at topics and channels, and work with them by hand."""

from __future__ import annotations

import importlib
from typing import Any

from pynotify.cli.commands import COMMANDS
from pynotify.cli.plain import Parser
from pynotify.cli.terminal import say

#: Each action's module, which has a class or function of its name.
_MODULES = {
    "list": "look",
    "stats": "look",
    "peek": "look",
    "publish": "move",
    "tail": "move",
    "consume": "move",
    "requeue": "move",
    "pause": "change",
    "unpause": "change",
    "configure": "change",
    "empty": "change",
    "delete": "change",
    "fsck": "offline",
    "export": "offline",
}


def run(words: list[str]) -> int:
    """Run the subcommand, which is like a command of its own."""
    name = words[0] if words else ""
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name not in _MODULES:
        if name:
            say(f"pynotify topics: there is no action {name!r}")
        say(_help())
        return 2
    action = _action(name)
    parser = Parser(f"pynotify topics {name}", action.summary)
    action.add_arguments(parser)
    return int(action.run(parser.parse(words[1:])))


def actions() -> list[tuple[str, Any]]:
    """Each action by its name: with `summary`, `add_arguments` and `run`."""
    return [(name, _action(name)) for name in _MODULES]


def _action(name: str) -> Any:
    return importlib.import_module(f"pynotify.cli.topics.{_MODULES[name]}").ACTIONS[name]


def _help() -> str:
    return "\n".join(
        [
            "usage: pynotify topics ACTION ...",
            "",
            COMMANDS["topics"],
            "",
            *(f"  {name:<10} {action.summary}" for name, action in actions()),
            "",
            "`pynotify topics ACTION --help` says more.",
        ]
    )
