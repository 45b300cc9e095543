"""What a channel without consumers costs the topic's other channel: it is to be next to nothing.

Both topics have a directory for what has no room in memory; one of them has a second channel, which
has more than its part of the memory before anything is measured.  Bodies of 200 bytes, a hundred
are published and then a hundred consumed; only the one or the other is timed.
"""

from __future__ import annotations

import os
import time
from functools import partial

import pynotify
from bench.pairs import alternate
from bench.settings import Settings

TOPIC = "abandoned"

_BODY = b"x" * 200
_AT_A_TIME = 100
_MESSAGES = 50_000
_PAIRS = 7
_MOST = 1.1


class _Queue:
    def __init__(self, settings: Settings, *, durable: bool, abandoned: bool) -> None:
        self.segment = f"bench-abandoned-{os.getpid()}-{durable:d}{abandoned:d}"
        directory = settings.directory / self.segment
        directory.mkdir(mode=0o700)
        self.conn = pynotify.connect(self.segment, data_dir=directory, topic_memory=4 << 20)
        self.topic = (
            self.conn.topic("jobs", durable=True, fsync="none")
            if durable
            else self.conn.topic("jobs")
        )
        self.consumer = self.topic.channel("worker").consumer(max_in_flight=_AT_A_TIME)
        if abandoned:
            self.topic.channel("abandoned")
            while self.topic.stats().on_disk == 0:
                self._round()

    def close(self) -> None:
        self.conn.close()
        pynotify.unlink(self.segment, force=True)

    def _round(self) -> tuple[float, float]:
        begin = time.perf_counter()
        for _ in range(_AT_A_TIME):
            self.topic.publish(_BODY)
        published = time.perf_counter()
        for _ in range(_AT_A_TIME):
            self.consumer.get(timeout=5).finish()
        return published - begin, time.perf_counter() - published

    def microseconds(self, messages: int, which: int) -> float:
        """For each message; which: 0 to publish it, 1 to get and finish it."""
        spent = sum(self._round()[which] for _ in range(messages // _AT_A_TIME))
        return spent / messages * 1e6


def run(settings: Settings) -> None:
    """Consuming has a bar; publishing writes a record to a file for the channel that rests."""
    for durable in (False, True):
        queues = [_Queue(settings, durable=durable, abandoned=it) for it in (True, False)]
        try:
            for which, name in ((1, "get and finish"), (0, "publish")):
                passes = [
                    partial(queue.microseconds, settings.messages(_MESSAGES), which)
                    for queue in queues
                ]
                beside, alone = alternate(passes, settings.pairs(_PAIRS))
                settings.compare(
                    TOPIC,
                    f"{name}, durable" if durable else name,
                    "us",
                    beside,
                    alone,
                    against="without an abandoned channel",
                    bar=_MOST if which == 1 else None,
                    at_most=True,
                )
        finally:
            for queue in queues:
                queue.close()
