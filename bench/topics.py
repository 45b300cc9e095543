"""Topics beside other queues of work: into the queue, shared out among workers, and latency.

Bodies of 200 bytes.  Into the queue: nobody takes them meanwhile.  Shared out: one producer, four
workers, each message taken and acknowledged by itself (where the queue has that), and compared one
by one with what was sent.  Latency: one message each millisecond to a process that sleeps, beside
a notification.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from bench.figures import Figure, Spread, compare
from bench.latency import PLACES, alternate_rigs, quantile
from bench.pairs import alternate
from bench.peers.ours import Pynotify
from bench.queues.nsq import Nsqd
from bench.queues.ours import DurableTopics, TopicPeer, Topics
from bench.queues.queue import Queue
from bench.queues.redis_lists import RedisLists
from bench.queues.stdlib import MultiprocessingQueue
from bench.queues.zeromq import PushPull
from bench.rig import Rig
from bench.settings import Settings
from bench.work_rig import WorkRig

TOPIC = "topics"
COMMAND = "python -m bench --only topics"
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
            _alone(settings, name, values)
    with WorkRig(DurableTopics(settings.directory), workers=1) as durable:
        (values,) = alternate([partial(durable.put, count)], settings.pairs(_PAIRS))
        _alone(settings, _DURABLE, values)
    for queue in _queues(settings):
        _beside(settings, queue)
    _latency(settings)


def _alone(settings: Settings, name: str, values: list[float]) -> None:
    settings.report(
        Figure(
            topic=TOPIC,
            name=name,
            unit=UNIT,
            ours=Spread.of(values),
            command=COMMAND,
            repetitions=len(values),
            bar=_BARS.get(name),
        )
    )


def _queues(settings: Settings) -> list[Queue]:
    found: list[Queue] = [MultiprocessingQueue(settings.directory)]
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
            settings.report(
                compare(TOPIC, name, UNIT, own, peer, against=queue.name, command=COMMAND, bar=bar)
            )


def _latency(settings: Settings) -> None:
    """From the call of publish() to the message in hand, beside notify() and the Notify."""
    peers = (TopicPeer(settings.directory, 0), Pynotify(settings.directory, 0))
    with ExitStack() as stack:
        rigs = [stack.enter_context(Rig(peer)) for peer in peers]
        for place in PLACES:
            topics, notifications = alternate_rigs(settings, rigs, place, _LATENCY_PAIRS)
            for label, share in (("p50", 0.5), ("p99", 0.99)):
                settings.report(
                    compare(
                        TOPIC,
                        f"a sleeping consumer, {label}, {place}",
                        "us",
                        quantile(topics, share),
                        quantile(notifications, share),
                        against="a notification",
                        command=COMMAND,
                        bar=1.2 if label == "p50" else None,
                        at_most=True,
                    )
                )
