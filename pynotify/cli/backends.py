"""A connection as a row: what the segment says of it, and what /proc says of its process."""

from __future__ import annotations

import dataclasses
import signal
from typing import TYPE_CHECKING, Any

from pynotify._procfs import command_line, command_name
from pynotify._table import size, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pynotify._types import BackendStat, EngineStat, ListenedChannel
    from pynotify.topics import TopicStats

_HEADINGS = (">BACKEND", ">PID", "COMMAND", "DATABASE", ">CHANNELS", ">LAG", "STATE", "WAKE-UP")
_UNKNOWN = "?"


def of_database(stat: EngineStat, database: str | None) -> EngineStat:
    """Without the backends of the others; all else is of the whole segment.  None: all."""
    if database is None:
        return stat
    backends = [backend for backend in stat.backends if backend.database == database]
    return dataclasses.replace(stat, backends=backends)


def as_json(
    stat: EngineStat,
    topics: Sequence[TopicStats],
    channels: Iterable[ListenedChannel],
    patterns: Iterable[ListenedChannel],
) -> dict[str, Any]:
    """All of EngineStat, the topics, and the channels and patterns that are listened to.

    A backend also has `command`, null when its process is not visible.
    """
    document = dataclasses.asdict(stat)
    document["listened_channels"] = [dataclasses.asdict(channel) for channel in channels]
    document["listened_patterns"] = [dataclasses.asdict(pattern) for pattern in patterns]
    document["topics"] = [dataclasses.asdict(topic) for topic in topics]
    for backend in document["backends"]:
        backend["command"] = command_name(backend["pid"])
    return document


def backend_table(backends: Iterable[BackendStat]) -> list[str]:
    """Headings and a line for each; the last column where one says what it is for."""
    listed = list(backends)
    if not any(backend.application_name for backend in listed):
        return table(_HEADINGS, map(_row, listed))
    rows = [(*_row(backend), backend.application_name) for backend in listed]
    return table((*_HEADINGS, "APPLICATION"), rows)


def _row(backend: BackendStat) -> tuple[object, ...]:
    return (
        backend.backend_id,
        backend.pid,
        command_line(backend.pid) or _UNKNOWN,
        backend.database,
        backend.channels,
        size(backend.lag_bytes) if backend.lag_bytes else "-",
        _state(backend),
        signal_name(backend.wakeup),
    )


def _state(backend: BackendStat) -> str:
    if backend.in_transaction:
        return "in transaction"
    if backend.bridge is not None:
        return f"bridge, {backend.bridge}"
    if not backend.channels:
        return "not listening"
    return "asleep" if backend.asleep else "awake"


def signal_name(wakeup: int | str) -> str:
    """SIGUSR1, SIGRTMIN+3, or "poll"."""
    if isinstance(wakeup, str):
        return wakeup
    if signal.SIGRTMIN < wakeup < signal.SIGRTMAX:
        return f"SIGRTMIN+{wakeup - signal.SIGRTMIN}"
    return signal.Signals(wakeup).name


def process(pid: int) -> str:
    """A pid with the name of its command."""
    return f"{pid} ({command_name(pid) or _UNKNOWN})"


def queue_line(stat: EngineStat) -> str:
    """How full the queue is, and the process that holds its tail."""
    text = f"{stat.queue_usage:.1%} of {stat.max_queue_pages:,} pages"
    if stat.tail_holder_pid is None:
        return f"{text}, no backend has anything to read"
    return f"{text}, {size(stat.head - stat.tail)} held by {process(stat.tail_holder_pid)}"
