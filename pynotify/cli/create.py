"""`pynotify create`: make a segment, with its options, before there are programs that use it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from pynotify import _engine
from pynotify._configured import configured, parse_option, variable
from pynotify._segments import segments
from pynotify._table import size
from pynotify.cli.terminal import complain, say
from pynotify.errors import LayoutMismatch

if TYPE_CHECKING:
    from collections.abc import Callable


OPTIONS = {
    "queue_pages": ("N", "pages of 8 KiB in the ring"),
    "max_queue_pages": ("N", "above --queue-pages: what goes to files in --data-dir"),
    "data_dir": ("DIR", "for pages beyond the ring and for topics on disk"),
    "on_full": ("WHAT", "error, block or drop-slowest: what a notifier meets when it is full"),
    "full_timeout": ("SECONDS", "for which block waits"),
    "max_backends": ("N", "connections"),
    "max_channels": ("N", "channels that are listened to"),
    "max_subscriptions": ("N", "pairs of a listener and a channel"),
    "max_generations": ("N", "shared counters"),
    "max_payload": ("BYTES", "of a notification"),
    "max_channel_name": ("BYTES", "of a channel's name"),
    "topic_memory": ("BYTES", "for the messages of all topics"),
    "max_body": ("BYTES", "of a topic's message"),
    "max_topics": ("N", "topics"),
    "max_topic_channels": ("N", "channels of all topics"),
    "max_consumers": ("N", "consumers of all channels"),
    "signaling": ("HOW", "targeted, or broadcast to measure the difference"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("name", metavar="NAME", help="the segment")
    for option, (metavar, text) in OPTIONS.items():
        parser.add_argument(
            f"--{option.replace('_', '-')}", metavar=metavar, type=_type(option), help=text
        )
    parser.epilog = (
        "Sizes may end in KiB, MiB or GiB. What is not given is as the environment variable "
        "PYNOTIFY_NAME and the file $PYNOTIFY_CONFIG say, or the default."
    )


def _type(option: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return parse_option(option, text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def run(options: argparse.Namespace) -> int:
    """Make it; it is left as it is where it has these options already."""
    given = {name: getattr(options, name) for name in OPTIONS}
    wanted: Any = {name: value for name, value in given.items() if value is not None}
    elsewhere = {
        name: found for name, found in configured(options.name).items() if name not in wanted
    }
    if any(info.name == options.name for info in segments()):
        wanted |= {name: value for name, (value, _) in elsewhere.items()}
        return _compare(options.name, wanted)
    with _engine.open(options.name, **wanted):
        made = {info.name: info.size for info in segments()}
    print(f'segment "{options.name}" of {size(made.get(options.name, 0))}')
    for name, (value, origin) in elsewhere.items():
        print(f"  {name}={value} ({origin})")
    if wanted:
        print(f"  programs give the same options, or none, or read {variable(options.name)}")
    return 0


def _compare(segment: str, wanted: Any) -> int:
    """Say whether the segment, which is there, has these options."""
    try:
        with _engine.open(segment, create=False, **wanted):
            say(f'pynotify create: segment "{segment}" is there, with these options')
    except LayoutMismatch as error:
        complain("create", error, f"`pynotify rm {segment}` removes it.")
        return 1
    return 0
