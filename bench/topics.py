"""Topics beside other queues of work: into the queue, shared out among workers, and latency.

Bodies of 200 bytes.  Into the queue: they are not taken meanwhile.  Shared out: one producer, four
workers, each message taken and acknowledged by itself (where the queue has that), and compared one
by one with what was sent.  Latency: one message each millisecond to a process that sleeps, beside
a notification.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from bench.latency import PLACES, quantiles
from bench.pairs import alternate
from bench.peer import Queue
from bench.peers.nsq import Nsqd
from bench.peers.ours import Pynotify
from bench.peers.redis_server import RedisLists
from bench.peers.stdlib import UnacknowledgedQueue
from bench.peers.topics import DurableTopics, SingleTopics, Topics
from bench.peers.zeromq import PushPull
from bench.rig import Rig
from bench.settings import Settings
from bench.work_rig import WorkRig

TOPIC = "topics"
UNIT = "messages/s"

_WORKERS = 4
_MESSAGES = 200_000
_MANY = 400_000
_SLOW = 20_000  # of a queue that takes a round trip for each
_PAIRS = 7
_LATENCY_PAIRS = 11

_EACH, _ALL, _SHARED = "publish one at a time", "publish_many", "one producer, four consumers"
_DURABLE = 'publish one at a time, durable, fsync="none"'
_BARS = {_EACH: 500_000, _ALL: 3_000_000, _SHARED: 300_000, _DURABLE: 200_000}


def run(settings: Settings) -> None:
    """The absolute bars, then each peer in alternating passes, then latency."""
    with WorkRig(Topics(settings.directory), workers=_WORKERS) as ours:
        count, many = settings.messages(_MESSAGES), settings.messages(_MANY)
        ways: dict[str, Callable[[], float]] = {
            _EACH: partial(ours.put, count),
            _ALL: partial(ours.put, many, many=True),
            _SHARED: partial(ours.shared, count),
            "the same with publish_many": partial(ours.shared, count, many=True),
        }
        for name, way in ways.items():
            (values,) = alternate([way], settings.pairs(_PAIRS))
            settings.alone(TOPIC, name, UNIT, values, bar=_BARS.get(name))
    with WorkRig(DurableTopics(settings.directory), workers=1) as durable:
        (values,) = alternate([partial(durable.put, count)], settings.pairs(_PAIRS))
        settings.alone(TOPIC, _DURABLE, UNIT, values, bar=_BARS[_DURABLE])
    for queue in _queues(settings):
        _beside(settings, queue)
    _latency(settings)


def _queues(settings: Settings) -> list[Queue]:
    found: list[Queue] = [UnacknowledgedQueue(settings.directory)]
    if PushPull.available():
        found.append(PushPull(settings.directory))
    if RedisLists.available():
        found.append(RedisLists(settings.directory))
    if settings.nsqd is not None:
        found.append(Nsqd(settings.directory, settings.nsqd))
    return found


def _beside(settings: Settings, queue: Queue) -> None:
    """What the queue can do, in alternating passes with ours."""
    slow = settings.messages(_SLOW if queue.has_many else _MESSAGES)
    fast = settings.messages(_MESSAGES)
    with ExitStack() as stack:
        ours, theirs = (
            stack.enter_context(WorkRig(each, workers=_WORKERS))
            for each in (Topics(settings.directory), queue)
        )
        passes: list[tuple[str, Callable[[], float], Callable[[], float]]] = []
        if queue.has_many:
            passes.append((_EACH, partial(ours.put, fast), partial(theirs.put, slow)))
            passes.append(
                (_ALL, partial(ours.put, fast, many=True), partial(theirs.put, fast, many=True))
            )
        passes.append((_SHARED, partial(ours.shared, fast), partial(theirs.shared, slow)))
        for name, mine, its in passes:
            own, peer = alternate([mine, its], settings.pairs(_PAIRS))
            bar = 20.0 if isinstance(queue, Nsqd) and name == _EACH else None
            settings.compare(TOPIC, name, UNIT, own, peer, against=queue.name, bar=bar)


def _latency(settings: Settings) -> None:
    """From the call of publish() to the message in hand, beside notify() and the Notify."""
    peers = (SingleTopics(settings.directory), Pynotify(settings.directory))
    with ExitStack() as stack:
        rigs = [stack.enter_context(Rig(peer)) for peer in peers]
        for place in PLACES:
            for label, (topics, notes) in quantiles(settings, rigs, place, _LATENCY_PAIRS):
                settings.compare(
                    TOPIC, f"a sleeping consumer, {label}, {place}", "us", topics, notes,
                    against="a notification", bar=1.2 if label == "p50" else None, at_most=True,
                )  # fmt: skip
