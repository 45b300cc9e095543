"""Arguments that several commands have, and what counts as a usable value."""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def positive_seconds(text: str) -> float:
    """A finite number above 0."""
    value = float(text)
    if not math.isfinite(value) or value <= 0:
        raise ValueError
    return value


def seconds(text: str) -> float:
    """A finite number, 0 included."""
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise ValueError
    return value


def count(text: str) -> int:
    """A whole number from 1."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def size(text: str) -> int:
    """A number of bytes, 0 included."""
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def age(text: str) -> float:
    """Seconds, or minutes, hours and days: 90, 90s, 30m, 1h, 7d."""
    unit = _UNITS.get(text[-1:])
    return seconds(text) if unit is None else seconds(text[:-1]) * unit


def header(text: str) -> tuple[str, str]:
    """A name, which may have no equals sign, and a value."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError
    return name, value


# argparse says "invalid NAME value" with the function's name.
positive_seconds.__name__ = "number of seconds"
seconds.__name__ = "number of seconds"
count.__name__ = "count"
age.__name__ = "age (say 30m, 1h, 7d)"
header.__name__ = "NAME=VALUE"


def add_segment_option(parser: argparse.ArgumentParser) -> None:
    """The segment, where positional arguments mean something else."""
    parser.add_argument("-n", "--name", default="default", help='the segment (default: "default")')


def add_connection(parser: argparse.ArgumentParser) -> None:
    """The segment and the database of a command that connects."""
    add_segment_option(parser)
    parser.add_argument(
        "--database", default="default", help='the name space in it (default: "default")'
    )


def add_database_filter(parser: argparse.ArgumentParser) -> None:
    """Declare --database for a command that sees all databases of the segment."""
    parser.add_argument("--database", help="show only this one (default: all)")


def add_segment(parser: argparse.ArgumentParser) -> None:
    """The segment of a command that only looks."""
    parser.add_argument(
        "name", metavar="NAME", nargs="?", default="default", help='the segment ("default")'
    )


def add_interval(parser: argparse.ArgumentParser, what: str) -> None:
    """--interval, one second unless it is given; `what` has no default in it."""
    parser.add_argument(
        "--interval",
        type=positive_seconds,
        default=1.0,
        metavar="S",
        help=f"{what} (default: 1)",
    )


def add_bounds(parser: argparse.ArgumentParser, after: str) -> None:
    """--count and --timeout of a command that prints what comes, and --json."""
    parser.add_argument("--count", type=count, metavar="N", help=f"end after {after}")
    parser.add_argument(
        "--timeout",
        type=seconds,
        metavar="S",
        help="end when nothing came for S seconds; with --count unreached, the status is 1",
    )
    add_json(parser, "an object a line")


def add_header(parser: argparse.ArgumentParser, what: str) -> None:
    """--header of a command that sends: a list of pairs."""
    parser.add_argument(
        "--header",
        type=header,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"goes along beside {what}; may be repeated, and of equal names the last one counts",
    )


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """--json."""
    parser.add_argument("--json", action="store_true", help=f"print {what}")


def print_json(document: Any, *, indent: int | None = 1) -> None:
    """One document; nothing in it can be taken for an escape sequence, as it is ASCII."""
    import json  # noqa: PLC0415, the most of commands do without it

    print(json.dumps(document, indent=indent), flush=True)
