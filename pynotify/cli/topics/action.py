"""What the actions of `pynotify topics` have in common: the words of the command, and the lines."""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pynotify._engine import open as open_segment
from pynotify._table import escape
from pynotify.cli import arguments
from pynotify.cli.terminal import decode, is_terminal
from pynotify.errors import ProgrammingError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pynotify._connection import Connection
    from pynotify.topics import Channel, Message, PeekedMessage, Topic


@dataclass(frozen=True)
class Action:
    """One of them."""

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_topic(parser: argparse.ArgumentParser, *, channel: str | None = None) -> None:
    """The topic, and the channel: None, "?" or 1."""
    parser.add_argument("topic", metavar="TOPIC", help="a topic")
    if channel == "?":
        parser.add_argument("channel", metavar="CHANNEL", nargs="?", help="one of its channels")
    elif channel:
        parser.add_argument("channel", metavar="CHANNEL", help="one of its channels")
    arguments.add_connection(parser)


def attach(options: argparse.Namespace) -> Connection:
    """To a segment that exists."""
    with open_segment(options.name, create=False) as engine:
        return engine.connect(options.database)


def existing_topic(connection: Connection, name: str) -> Topic:
    """The topic or channel, which is not created here."""
    if name not in connection.topics():
        raise no_such_topic(name)
    return connection.topic(name)


def no_such_topic(name: str) -> ProgrammingError:
    """In the database, or in any."""
    return ProgrammingError(
        f'topic "{name}" does not exist', hint="`pynotify topics list` lists what there is."
    )


def existing_channel(topic: Topic, name: str) -> Channel:
    """The topic or channel, which is not created here."""
    if name not in topic.channels():
        raise ProgrammingError(
            f'topic "{topic.name}" has no channel "{name}"',
            hint=f"`pynotify topics stats {topic.name}` lists what there is.",
        )
    return topic.channel(name)


def text_or_base64(data: bytes) -> dict[str, Any]:
    """A body that is not UTF-8 stands in body_base64."""
    try:
        return {"body": data.decode()}
    except UnicodeDecodeError:
        return {"body": None, "body_base64": base64.b64encode(data).decode("ascii")}


def message_as_json(topic: str, channel: str, message: Message) -> dict[str, Any]:
    """What one needs to know of it."""
    return {
        "topic": topic,
        "channel": channel,
        "id": message.id,
        **text_or_base64(message.body),
        "attempts": message.attempts,
        "published_ns": message.published_ns,
        "headers": message.headers,
    }


def peeked_as_json(message: PeekedMessage) -> dict[str, Any]:
    """The same of one that lies there."""
    return {
        "id": message.id,
        "state": message.state,
        "attempts": message.attempts,
        "due_in": message.due_in,
        "published_ns": message.published_ns,
        **text_or_base64(message.body),
    }


def write_line(data: bytes) -> None:
    """Write the line as it is, on a terminal without control characters, and flush it."""
    if is_terminal():
        data = escape(decode(data)).encode(sys.stdout.encoding, "backslashreplace")
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()


def write_json_line(document: dict[str, Any]) -> None:
    """An object a line; at once."""
    write_line(json.dumps(document).encode("ascii"))
