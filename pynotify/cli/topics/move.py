"""`pynotify topics publish`, `tail`, `consume` and `requeue`: messages in and out."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING

from pynotify._connect import connect
from pynotify.cli import arguments
from pynotify.cli.notify import lines_of
from pynotify.cli.terminal import Watch, tidied_up
from pynotify.cli.topics.action import (
    Action,
    add_topic,
    attach,
    existing_channel,
    existing_topic,
    message_as_json,
    write_json_line,
    write_line,
)
from pynotify.errors import Timeout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynotify.topics import Channel, Consumer, Message

_STANDARD_INPUT = "-"


def _add_publish(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="a topic; made if need be")
    parser.add_argument(
        "body",
        metavar="BODY|-",
        nargs="?",
        default=_STANDARD_INPUT,
        help='"-", the default, takes it from standard input, byte for byte',
    )
    arguments.add_connection(parser)
    parser.add_argument(
        "--lines",
        action="store_true",
        help="a message for each line of standard input that is not empty, all or none",
    )
    parser.add_argument(
        "--delay", type=arguments.seconds, default=0.0, metavar="S", help="before it is delivered"
    )
    parser.add_argument(
        "--ttl", type=arguments.positive_seconds, metavar="S", help="after which it no longer is"
    )
    arguments.add_header(parser, "each message")
    arguments.add_json(parser, "a list of the ids")


def _publish(options: argparse.Namespace) -> int:
    if options.lines and options.body != _STANDARD_INPUT:
        raise ValueError("--lines takes the bodies from standard input")
    # Before connecting: while the body is typed no slot is held.
    typed = options.body == _STANDARD_INPUT
    data = sys.stdin.buffer.read() if typed else os.fsencode(options.body)
    bodies = [line for line in lines_of(data) if line] if options.lines else [data]
    with connect(options.name, database=options.database) as connection:
        ids = connection.topic(options.topic).publish_many(
            bodies, delay=options.delay, ttl=options.ttl, headers=dict(options.header)
        )
    if options.json:
        arguments.print_json(list(ids))
    elif ids:
        print("\n".join(ids))
    return 0


def _add_tail(parser: argparse.ArgumentParser) -> None:
    add_topic(parser)
    arguments.add_bounds(parser, "so many")


def _add_consume(parser: argparse.ArgumentParser) -> None:
    add_topic(parser, channel="1")
    parser.add_argument(
        "--max-in-flight", type=arguments.count, default=1, metavar="N", help="taken at a time (1)"
    )
    arguments.add_bounds(parser, "so many")


def _tail(options: argparse.Namespace) -> int:
    """Listen by an ephemeral channel, which ends with us and takes nothing from the others."""
    with connect(options.name, database=options.database) as connection:
        topic = connection.topic(options.topic)
        return _print_all(topic.channel(f"tail-{os.getpid()}#ephemeral"), options, 100)


def _consume(options: argparse.Namespace) -> int:
    with connect(options.name, database=options.database) as connection:
        channel = connection.topic(options.topic).channel(options.channel)
        return _print_all(channel, options, options.max_in_flight)


def _print_all(channel: Channel, options: argparse.Namespace, max_in_flight: int) -> int:
    """A message is finished when its line was written."""
    seen = 0
    with tidied_up(), channel.consumer(max_in_flight=max_in_flight) as consumer:
        for message in _messages(consumer, options.count, options.timeout):
            with message:
                if options.json:
                    write_json_line(message_as_json(options.topic, channel.name, message))
                else:
                    write_line(message.body)
            seen += 1
    return 0 if options.count is None or seen == options.count else 1


def _messages(consumer: Consumer, count: int | None, timeout: float | None) -> Iterator[Message]:
    """Print messages until the count is reached, the time is over or the output is closed."""
    watch = Watch(consumer.fileno())
    deadline = None if timeout is None else time.monotonic() + timeout
    while count is None or count > 0:
        try:
            message = consumer.get(0)
        except Timeout:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return
            watch.wait(remaining)
            continue
        yield message
        count = None if count is None else count - 1
        deadline = None if timeout is None else time.monotonic() + timeout


def _add_requeue(parser: argparse.ArgumentParser) -> None:
    add_topic(parser, channel="1")
    parser.add_argument(
        "--count", type=arguments.count, metavar="N", help="so many at most (default: all)"
    )


def _requeue(options: argparse.Namespace) -> int:
    """Each in a transaction, which finishes the dead letter and publishes it again."""
    moved = 0
    with attach(options) as connection:
        channel = existing_channel(existing_topic(connection, options.topic), options.channel)
        left = channel.stats().depth if options.count is None else options.count
        with channel.consumer(max_attempts=0) as consumer:
            while moved < left:
                try:
                    message = consumer.get(0)
                except Timeout:
                    break
                origin = message.headers.get("dead-letter-topic")
                if origin is None:
                    raise ValueError(
                        f"message {message.id} is no dead letter: it has no header "
                        "dead-letter-topic"
                    )
                kept = {
                    name: value
                    for name, value in message.headers.items()
                    if not name.startswith("dead-letter-")
                }
                with connection.transaction(), message:
                    connection.topic(origin).publish(message.body, headers=kept)
                moved += 1
    print(f"{moved} published again")
    return 0


ACTIONS = {
    "publish": Action("publish a message, and print its id", _add_publish, _publish),
    "tail": Action("print what is published from now on", _add_tail, _tail),
    "consume": Action("take messages of a channel, print and finish them", _add_consume, _consume),
    "requeue": Action(
        "publish the dead letters of a channel again, where they come from",
        _add_requeue,
        _requeue,
    ),
}
