"""What cutting an object into segments costs: 1 MB in one message, and in segments.

The same PubSub on the same machine, between two connections of one process: a segment with
`max_payload` of 1 MiB, in which a text of 1 MB is one payload as it is, against one with
PostgreSQL's 7,999 bytes, where it is base64 in 175 pieces.  Bytes are base64 in both, and as they
are with raw=True, in the segment that has the defaults.  Sending and
receiving are timed apart and follow each other, so that neither waits for a wake-up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pynotify
from bench.pairs import alternate
from bench.settings import Settings, command

TOPIC = "pubsub"
UNIT = "MB/s"

_OBJECTS = 20
_PAIRS = 11
_CHANNEL = "bench"
_SIZE = (1 << 20) - 1  # a payload of 1 MiB with its flag
_QUEUE_PAGES = 1024
_RAW_BAR = 1000.0


class _Way:
    """From one PubSub to another; `rates` are MB/s of the last pass: sending, receiving, both."""

    def __init__(self, sender: pynotify.PubSub, receiver: pynotify.PubSub, obj: Any) -> None:
        self._sender = sender
        self._receiver = receiver
        self._obj = obj
        receiver.subscribe(_CHANNEL)
        receiver.on(_CHANNEL, self._check)

    def _check(self, obj: Any) -> None:
        assert obj == self._obj, "what arrives is not what was sent"

    def measure(self, what: str, count: int) -> float:
        sending = receiving = 0
        for _ in range(count):
            begin = time.perf_counter_ns()
            self._sender.publish(_CHANNEL, self._obj)
            sent = time.perf_counter_ns()
            came = 0
            while not came:
                came = self._receiver.run(0)
            receiving += time.perf_counter_ns() - sent
            sending += sent - begin
        taken = {"send": sending, "receive": receiving, "both": sending + receiving}[what]
        return count * len(self._obj) / taken * 1e3


def run(settings: Settings) -> None:
    """One message against segments; with a PostgreSQL, segments against segments there."""
    count = 2 if settings.quick else _OBJECTS
    pairs = settings.pairs(_PAIRS)
    for kind, obj in (("text", "x" * _SIZE), ("bytes", os.urandom(_SIZE))):
        with ExitStack() as stack:
            # Base64 of 1 MiB and its flag.
            whole = _local(stack, obj, max_payload=(1 << 20) // 3 * 4 + 8)
            cut = _local(stack, obj)
            for what in ("send", "receive", "both"):
                passes = [partial(way.measure, what, count) for way in (whole, cut)]
                ours, theirs = alternate(passes, pairs)
                title = f"1 MB of {kind} in one message, {what}"
                against = "in segments of 7,999 bytes"
                settings.compare(TOPIC, title, UNIT, ours, theirs, against=against)
            if kind == "bytes":
                raw = _local(stack, obj, raw=True)
                passes = [partial(way.measure, "both", count) for way in (raw, cut)]
                ours, theirs = alternate(passes, pairs)
                title = f"1 MB of {kind} with raw=True, both"
                settings.compare(TOPIC, title, UNIT, ours, theirs, against="in base64")
                settings.alone(TOPIC, f"{title}, a second", UNIT, ours, bar=_RAW_BAR)
            if settings.postgres is not None:
                distant = _postgres(stack, obj, settings.postgres)
                passes = [partial(way.measure, "both", count) for way in (cut, distant)]
                ours, theirs = alternate(passes, pairs)
                title = f"1 MB of {kind} in segments, both"
                settings.compare(
                    TOPIC, title, UNIT, ours, theirs, against="over PostgreSQL",
                    command=f"{command(TOPIC)} --postgres DSN",
                )  # fmt: skip


def _local(stack: ExitStack, obj: Any, *, raw: bool = False, **options: Any) -> _Way:
    name = f"bench-pubsub-{os.getpid()}-{len(options)}-{int(raw)}"
    stack.callback(pynotify.unlink, name, missing_ok=True)
    options = {"queue_pages": _QUEUE_PAGES, **options}
    return _way(stack, lambda: pynotify.connect(name, **options), obj, raw=raw)


def _postgres(stack: ExitStack, obj: Any, dsn: str) -> _Way:
    import psycopg

    return _way(stack, lambda: psycopg.connect(dsn, autocommit=True), obj)


def _way(stack: ExitStack, make: Callable[[], Any], obj: Any, *, raw: bool = False) -> _Way:
    sender, receiver = (stack.enter_context(pynotify.PubSub(make, raw=raw)) for _ in range(2))
    return _Way(sender, receiver, obj)
