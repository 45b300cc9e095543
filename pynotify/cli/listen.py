"""`pynotify listen`: what psql prints after a LISTEN, as it comes."""

from __future__ import annotations

import base64
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from pynotify._connect import connect
from pynotify._table import escape
from pynotify._types import Gap, Notify
from pynotify.cli import arguments
from pynotify.cli.terminal import Watch, decode, is_terminal

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from pynotify._connection import Connection

SUMMARY = "print notifications as they come"
_AT_ONCE = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("channels", metavar="CH", nargs="+", help="a channel")
    arguments.add_connection(parser)
    arguments.add_bounds(parser, "that many notifications")


def run(options: argparse.Namespace) -> int:
    """Listen until the count is reached, the time is over or the output is not read any more."""
    line = _json_line if options.json else _screen_line if is_terminal() else _raw_line
    seen = 0
    with connect(options.name, database=options.database) as connection:
        connection.listen(*options.channels)
        for message in _messages(connection, options.count, options.timeout):
            # Each line by itself: the next program in the pipe is waiting for it.
            sys.stdout.buffer.write(line(message) + b"\n")
            sys.stdout.buffer.flush()
            seen += isinstance(message, Notify)
    return 0 if options.count is None or seen == options.count else 1


def _messages(
    connection: Connection, count: int | None, timeout: float | None
) -> Iterator[Notify | Gap]:
    """Up to `count` notifications, and the gaps between them."""
    watch = Watch(connection.fileno())
    deadline = None if timeout is None else time.monotonic() + timeout
    left = count
    while left is None or left > 0:
        messages = connection.poll(_AT_ONCE if left is None else min(left, _AT_ONCE))
        for message in messages:
            if left is not None and isinstance(message, Notify):
                left -= 1
            yield message
        if messages and timeout is not None:
            deadline = time.monotonic() + timeout
        if not messages:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return
            watch.wait(remaining)


def sentence(channel: bytes, payload: bytes, pid: int) -> bytes:
    """psql's sentence for a notification, which leaves out an empty payload."""
    with_payload = b' with payload "%b"' % payload if payload else b""
    return b'Asynchronous notification "%b"%b received from server process with PID %d.' % (
        channel,
        with_payload,
        pid,
    )


def gap_sentence(gap: Gap) -> str:
    """In the place of what is missing."""
    if gap.reason == Gap.UPSTREAM:
        return f"Notifications may be missing here ({gap.reason})."
    return f"Notifications are missing here: {gap.missed_bytes} bytes ({gap.reason})."


def as_json(message: Notify | Gap) -> dict[str, Any]:
    """The attributes of the message; a payload that is not UTF-8 stands in payload_base64."""
    if isinstance(message, Gap):
        return {
            "channel": None,
            "missed_bytes": message.missed_bytes,
            "reason": message.reason,
            "missed": message.missed,
        }
    document: dict[str, Any] = {"channel": message.channel}
    try:
        document["payload"] = message.data.decode()
    except UnicodeDecodeError:
        document["payload"] = None
        document["payload_base64"] = base64.b64encode(message.data).decode("ascii")
    document |= {
        "pid": message.pid,
        "backend_id": message.backend_id,
        "seq": message.seq,
        "sent_ns": message.sent_ns,
    }
    return document


def _raw_line(message: Notify | Gap) -> bytes:
    """The payload as it was sent, as psql shows it; --json has more."""
    if isinstance(message, Gap):
        return gap_sentence(message).encode()
    return sentence(message.channel.encode(), message.data, message.pid)


def _screen_line(message: Notify | Gap) -> bytes:
    text = escape(decode(_raw_line(message)))
    return text.encode(sys.stdout.encoding, "backslashreplace")


def _json_line(message: Notify | Gap) -> bytes:
    return json.dumps(as_json(message)).encode("ascii")
