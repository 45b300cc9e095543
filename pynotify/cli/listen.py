"""`pynotify listen`: what psql prints after a LISTEN, as it comes."""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from pynotify._connect import connect
from pynotify._engine import open as open_segment
from pynotify._headers import encode as encode_headers
from pynotify._table import escape
from pynotify._types import Gap, Notify
from pynotify.cli import arguments
from pynotify.cli.terminal import Watch, decode, is_terminal, say
from pynotify.errors import SegmentNotFound, SegmentUnlinked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynotify._connection import Connection

_AT_ONCE = 256
_LOOK = 0.1  # seconds between two looks for the segment
_FIELDS = ("channel", "payload", "pid", "backend_id", "seq", "sent_ns", "pattern", "headers")
_FIELD = re.compile(r"\{(\w+)\}")
_FIELD_BYTES = re.compile(_FIELD.pattern.encode())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("channels", metavar="CH", nargs="*", help="a channel")
    parser.add_argument(
        "--pattern",
        dest="patterns",
        metavar="GLOB",
        action="append",
        default=[],
        help="all channels that match: *, ? and [a-z] as in Redis; may be repeated",
    )
    arguments.add_connection(parser)
    parser.add_argument(
        "--create",
        action="store_true",
        help="make the segment if there is none, with the options of PYNOTIFY_NAME; otherwise it "
        "waits for a program that makes it",
    )
    arguments.add_bounds(parser, "that many notifications")
    parser.add_argument(
        "--format",
        type=_template,
        metavar="TEXT",
        help="in the place of psql's sentence; " + ", ".join(f"{{{name}}}" for name in _FIELDS),
    )
    parser.add_argument(
        "-0",
        "--null",
        action="store_true",
        help="a NUL after each notification and not a newline, as xargs -0 reads them",
    )
    parser.add_argument(
        "--exec",
        metavar="COMMAND",
        help="print nothing, run a shell command for each, one after the other: the payload is its "
        "standard input, NOTIFY_CHANNEL, NOTIFY_PID, NOTIFY_SEQ, NOTIFY_PATTERN and NOTIFY_HEADERS "
        "are in its environment",
    )


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """What the parser cannot see by itself."""
    if not (options.channels or options.patterns):
        parser.error("name a channel, or a --pattern")
    if sum(map(bool, (options.json, options.format, options.exec))) > 1:
        parser.error("--json, --format and --exec are three ways to give out the same")


def _template(text: str) -> bytes:
    unknown = [name for name in _FIELD.findall(text) if name not in _FIELDS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{{{unknown[0]}}} is none of {', '.join(_FIELDS)}")
    return text.encode("utf-8", "surrogateescape")


def run(options: argparse.Namespace) -> int:
    """Listen until the count is reached, the time is over or the output is not read any more."""
    show = _run_command(options.exec) if options.exec else _print_lines(options)
    seen = 0
    connection = _connect(options)
    if connection is None:
        return 0 if options.count is None else 1
    with connection:
        with connection.transaction():
            connection.listen(*options.channels)
            connection.listen_pattern(*options.patterns)
        for message in _messages(connection, options.count, options.timeout):
            show(message)
            seen += isinstance(message, Notify)
    return 0 if options.count is None or seen == options.count else 1


def _connect(options: argparse.Namespace) -> Connection | None:
    """Connect when there is a segment; None when the time was over before.

    A segment that this command made would have other options than the program's that comes later.
    """
    if options.create:
        return connect(options.name, database=options.database)
    deadline = None if options.timeout is None else time.monotonic() + options.timeout
    watch = None
    while True:
        try:
            with open_segment(options.name, create=False) as engine:
                return engine.connect(options.database)
        except (SegmentNotFound, SegmentUnlinked):
            pass
        if deadline is not None and time.monotonic() >= deadline:
            return None
        if watch is None:
            watch = Watch()
            say(f'pynotify listen: waiting for segment "{options.name}"; --create makes it')
        left = _LOOK if deadline is None else min(_LOOK, deadline - time.monotonic())
        watch.wait(left)


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


def _print_lines(options: argparse.Namespace) -> Callable[[Notify | Gap], None]:
    raw = _raw_line if options.format is None else partial(_formatted, options.format)
    line = _json_line if options.json else partial(_screen_line, raw) if is_terminal() else raw
    end = b"\0" if options.null else b"\n"

    def show(message: Notify | Gap) -> None:
        # Each line by itself: the next program in the pipe is waiting for it.
        sys.stdout.buffer.write(line(message) + end)
        sys.stdout.buffer.flush()

    return show


def _run_command(command: str) -> Callable[[Notify | Gap], None]:
    def show(message: Notify | Gap) -> None:
        if isinstance(message, Gap):
            say(f"pynotify listen: {gap_sentence(message)}")
            return
        names = {
            "CHANNEL": message.channel,
            "PID": message.pid,
            "SEQ": message.seq,
            "PATTERN": message.pattern or "",
        }
        own: dict[str, str | bytes] = {
            f"NOTIFY_{name}": str(value) for name, value in names.items()
        }
        own["NOTIFY_HEADERS"] = encode_headers(message.headers)
        done = subprocess.run(
            command, shell=True, input=message.data, env={**os.environ, **own}, check=False
        )
        if done.returncode != 0:
            say(f"pynotify listen: the command ended with status {done.returncode}")

    return show


def _formatted(template: bytes, message: Notify | Gap) -> bytes:
    if isinstance(message, Gap):
        return gap_sentence(message).encode()
    fields = {
        "channel": message.channel.encode(),
        "payload": message.data,  # whatever bytes they are
        "pattern": (message.pattern or "").encode(),
        "headers": encode_headers(message.headers),
    }
    for name in _FIELDS:
        if name not in fields:
            fields[name] = str(getattr(message, name)).encode()
    return _FIELD_BYTES.sub(lambda found: fields[found[1].decode()], template)


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
    """The attributes of the message; a payload that is not UTF-8 stands in payload_base64.

    `pattern` is there when it came by one, `headers` when it has any.
    """
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
    if message.pattern is not None:
        document["pattern"] = message.pattern
    if message.raw_headers:
        document["headers"] = message.headers
    return document


def _raw_line(message: Notify | Gap) -> bytes:
    """The payload as it was sent, as psql shows it; --json has more."""
    if isinstance(message, Gap):
        return gap_sentence(message).encode()
    return sentence(message.channel.encode(), message.data, message.pid)


def _screen_line(raw: Callable[[Notify | Gap], bytes], message: Notify | Gap) -> bytes:
    text = escape(decode(raw(message)))
    return text.encode(sys.stdout.encoding, "backslashreplace")


def _json_line(message: Notify | Gap) -> bytes:
    return json.dumps(as_json(message)).encode("ascii")
