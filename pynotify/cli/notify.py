"""`pynotify notify`: one notification, or one for each line of standard input."""

from __future__ import annotations

import os
import sys

from pynotify._post import Post
from pynotify.cli import arguments

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

_STANDARD_INPUT = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "words",
        metavar="CH [PAYLOAD|-]",
        nargs="+",
        help='a channel, and the payload; "-" takes it from standard input, byte for byte',
    )
    arguments.add_connection(parser)
    parser.add_argument(
        "--lines",
        action="store_true",
        help="a notification for each line of standard input, all in one transaction, which "
        "collapses equal ones",
    )
    parser.add_argument(
        "--listeners",
        action="store_true",
        help="print how many connections listened to it when it was committed",
    )
    arguments.add_header(parser, "the payload, or each of them")


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """What the parser cannot see by itself."""
    if len(options.words) > 2:
        parser.error("a payload of several words has to be quoted")
    if options.lines and options.listeners:
        parser.error("--listeners is of one notification, without --lines")
    if options.lines and options.words[1:] not in ([], [_STANDARD_INPUT]):
        parser.error("--lines takes the payloads from standard input")


def run(options: argparse.Namespace) -> int:
    """Send."""
    channel, payload = (*options.words, "")[:2]
    headers = dict(options.header)
    # Before connecting: while the payload is typed no slot is held.
    if options.lines or payload == _STANDARD_INPUT:
        data = sys.stdin.buffer.read()
    else:
        data = os.fsencode(payload)
    with Post(options.name, options.database) as post:
        if options.lines:
            post.sender.notify_many(channel, lines_of(data), dedup=True, headers=headers)
        elif options.listeners:
            print(post.sender.notify_counted(channel, data, headers))
        else:
            post.sender.notify(channel, data, headers)
    return 0


def lines_of(data: bytes) -> list[bytes]:
    """An empty line is an empty payload; the end of the last line is not another one."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines
