"""`pynotify COMMAND ...`.

Exit status: 0 done, 1 it could not be done or a problem was found, 2 wrong usage, 130 after
Ctrl-C.  A reader of standard output that goes away is the end of a command, and no error.
"""

from __future__ import annotations

import io
import os
import sys

from pynotify._version import version
from pynotify.cli.commands import COMMANDS
from pynotify.cli.plain import Parser
from pynotify.cli.terminal import complain, say
from pynotify.errors import Error, SegmentNotFound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

DESCRIPTION = "LISTEN/NOTIFY between the processes of this host"
NOT_FOUND = "`pynotify ls` lists what there is."
DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = words[0] if words else ""
    try:
        if name in COMMANDS:
            if sys.stdout is None:
                raise OSError("standard output is closed")
            status = _run(name, words[1:])
        else:
            status = _without_command(name)
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        status = DONE
    except SegmentNotFound as error:
        complain(name, error, NOT_FOUND)
        status = FAILED
    except (Error, OSError, ValueError) as error:
        complain(name, error)
        status = FAILED
    _flush_or_discard()
    return status


def _run(name: str, words: list[str]) -> int:
    command = _module(f"pynotify.cli.{name}")
    if name in ("demo", "topics"):  # they have parsers of their own
        return int(command.run(words))
    parser = Parser(f"pynotify {name}", COMMANDS[name])
    command.add_arguments(parser)
    options = parser.parse(words)
    if hasattr(command, "check"):
        command.check(parser, options)
    return int(command.run(options))


def _without_command(name: str) -> int:
    if name in ("-h", "--help"):
        print(_help())
        return DONE
    if name in ("-V", "--version"):
        print(f"pynotify {version()}")
        return DONE
    if name:
        import difflib  # noqa: PLC0415, only a typo needs it

        near = difflib.get_close_matches(name, COMMANDS, 1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        say(f"pynotify: there is no command {name!r}{meant}")
    say(_help())
    return USAGE


def _module(name: str) -> Any:
    """Import a command when it is called for; importlib itself is dear."""
    __import__(name)
    return sys.modules[name]


def _help() -> str:
    return "\n".join(
        [
            "usage: pynotify COMMAND ...",
            "",
            DESCRIPTION,
            "",
            *(f"  {name:<10} {summary}" for name, summary in COMMANDS.items()),
            "",
            "`pynotify COMMAND --help` says more.",
            "Exit status: 0 done, 1 it could not be done or a problem was found, 2 wrong usage,",
            "130 after Ctrl-C.",
        ]
    )


def _flush_or_discard() -> None:
    """What cannot be written now would make the interpreter complain at its end."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
