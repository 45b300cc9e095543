"""`pynotify topics fsck` and `export`: a data directory without its segment; nothing is written."""

from __future__ import annotations

import argparse
import dataclasses
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pynotify._encoding import decode_headers
from pynotify._table import table
from pynotify.cli import arguments
from pynotify.cli.terminal import complain, say
from pynotify.cli.topics.action import Action, text_or_base64, write_json_line
from pynotify.cli.topics.directory import (
    Damage,
    Holder,
    LoggedMessage,
    Overflow,
    Reading,
    holder,
    logs,
    overflow,
)
from pynotify.errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CLEAN, DAMAGED, UNREADABLE = 0, 1, 2
_TOPICS_OWN = "(the topic's own)"
_SAID = {
    "unreadable": "{records:,} records cannot be read from here on",
    "spoilt": "a record with other content than was written",
    "torn": "a record whose transaction or call is not whole, so that it does not count",
    "missing": "the file is not there",
    "unfinished": "{bytes:,} bytes at the end of a write that was killed: no damage",
    "bad end": "{bytes:,} bytes at the end cannot be read: a write that lost its power, or damage",
}


@dataclass
class _Count:
    """The counts of a channel, or of what is still the topic's own."""

    database: str
    topic: str
    channel: str | None
    messages: int = 0
    bytes: int = 0
    deferred: int = 0
    delivered: int = 0


@dataclass
class _Report:
    """What one directory with a log has."""

    directory: str
    holder: Holder | None
    no_files: bool = False
    messages: int = 0
    bytes: int = 0
    counts: list[_Count] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)

    @property
    def damaged(self) -> bool:
        return self.no_files or any(not each.harmless for each in self.damage)


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory",
        metavar="DIR",
        type=Path,
        help="a data_dir, or the directory of one segment in it",
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="read it though a process uses it: what is written meanwhile may look damaged",
    )


def _add_fsck(parser: argparse.ArgumentParser) -> None:
    _add(parser)
    arguments.add_json(parser, "an object")


def _checked(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Exit status 2 for what cannot be read."""

    def checked(options: argparse.Namespace) -> int:
        try:
            return run(options)
        except BrokenPipeError:
            raise
        except (Error, OSError) as error:
            complain("topics", error)
            return UNREADABLE

    return checked


def _directories(options: argparse.Namespace) -> Iterator[tuple[Path, Holder | None]]:
    """The directories with a log, and the process that uses each; warns of one in use."""
    for path in logs(options.directory.resolve(strict=True)):
        user = holder(path)
        if user is not None:
            user_name = f"process {user.pid} on host {user.host}" if user.pid else "a process"
            text = f"{path} is in use; {user_name} opened it last"
            if not options.live:
                raise OSError(f"{text}\nEnd the processes of that segment, or read with --live.")
            say(f"pynotify topics: {text}: what is written meanwhile may look damaged")
        yield path, user


# ---- fsck ---------------------------------------------------------------------------------------


@_checked
def _fsck(options: argparse.Namespace) -> int:
    reports = [_read(path, user) for path, user in _directories(options)]
    queues = overflow(options.directory.resolve())
    damaged = any(each.damaged for each in reports) or any(each.damage for each in queues)
    if options.json:
        arguments.print_json(_as_json(reports, queues, damaged))
    else:
        print("\n".join(_page(options.directory, reports, queues)))
    return DAMAGED if damaged else CLEAN


def _read(path: Path, user: Holder | None) -> _Report:
    report = _Report(str(path), user)
    counts: dict[tuple[str, str, str | None], _Count] = {}
    now = time.time_ns()
    with Reading(path) as reading:
        report.no_files = reading.empty
        for item in reading:
            if isinstance(item, Damage):
                report.damage.append(item)
            else:
                report.messages += 1
                report.bytes += len(item.body)
                _count(counts, item, now)
        for topic in reading.topics.values():
            for channel in topic.channels.values() or [None]:
                key = (topic.database, topic.name, channel)
                counts.setdefault(key, _Count(*key))
    report.counts = [counts[key] for key in sorted(counts, key=str)]
    return report


def _count(
    counts: dict[tuple[str, str, str | None], _Count], item: LoggedMessage, now: int
) -> None:
    places: list[tuple[str | None, int, int]] = [
        (c.channel, c.attempts, c.due_ns) for c in item.copies
    ]
    if item.own:
        places = [(None, 0, item.due_ns)]
    for channel, attempts, due_ns in places:
        key = (item.topic.database, item.topic.name, channel)
        count = counts.setdefault(key, _Count(*key))
        count.messages += 1
        count.bytes += len(item.body)
        count.deferred += due_ns > now
        count.delivered += attempts > 0


def _as_json(reports: list[_Report], queues: list[Overflow], damaged: bool) -> dict[str, Any]:
    return {
        "damaged": damaged,
        "logs": [dataclasses.asdict(each) for each in reports],
        "overflow": [dataclasses.asdict(each) for each in queues],
    }


def _page(directory: Path, reports: list[_Report], queues: list[Overflow]) -> Iterator[str]:
    for report in reports:
        yield from _log_page(report)
    for queue in queues:
        yield (
            f'overflow of segment "{queue.segment}", {queue.instance}: '
            f"{queue.files:,} files, {queue.bytes:,} bytes"
        )
        yield from _damage_lines(queue.damage)
    if not reports and not queues:
        yield f"{directory}: no log of durable topics, no overflow"


def _log_page(report: _Report) -> Iterator[str]:
    yield f"{report.directory}: {report.messages:,} messages, {report.bytes:,} bytes"
    if report.no_files:
        yield "  a segment had its log here, and none of its files is left"
    if report.counts:
        yield from table(
            ["topic", "database", "channel", ">messages", ">bytes", ">deferred", ">delivered"],
            [
                [each.topic, each.database, each.channel or _TOPICS_OWN, f"{each.messages:,}",
                 f"{each.bytes:,}", f"{each.deferred:,}", f"{each.delivered:,}"]
                for each in report.counts
            ],
        )  # fmt: skip
    yield from _damage_lines(report.damage)


def _damage_lines(damage: list[Damage]) -> Iterator[str]:
    for each in damage:
        said = _SAID[each.reason].format(records=each.records, bytes=each.bytes)
        yield f"  {each.file} at {each.offset:,}: {said}"


# ---- export -------------------------------------------------------------------------------------


@_checked
def _export(options: argparse.Namespace) -> int:
    status = CLEAN
    for path, _ in _directories(options):
        with Reading(path) as reading:
            for item in reading:
                if isinstance(item, Damage):
                    status = status if item.harmless else DAMAGED
                else:
                    write_json_line(_message_as_json(path, item))
    if status == DAMAGED:
        say("pynotify topics: something there is damaged; `pynotify topics fsck` says what")
    return status


def _message_as_json(path: Path, item: LoggedMessage) -> dict[str, Any]:
    return {
        "segment": path.name,
        "database": item.topic.database,
        "topic": item.topic.name,
        "id": f"{item.id:016x}",
        "published_ns": item.published_ns,
        "due_ns": item.due_ns,
        "expires_ns": item.expires_ns,
        "channels": None if item.own else [dataclasses.asdict(each) for each in item.copies],
        "headers": decode_headers(item.headers),
        **text_or_base64(item.body),
    }


ACTIONS = {
    "fsck": Action(
        "look through a data_dir without its segment: what is there, what is damaged",
        _add_fsck,
        _fsck,
    ),
    "export": Action(
        "print the messages of a data_dir without its segment, a JSON object a line", _add, _export
    ),
}
