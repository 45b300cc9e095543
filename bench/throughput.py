"""One process to one process."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from bench.pairs import alternate
from bench.peer import Peer
from bench.peers.ours import Pynotify, PynotifyBatch, PynotifyCalling, PynotifyPieces
from bench.peers.posix_queue import PosixQueue
from bench.peers.postgres import Postgres
from bench.peers.redis_server import Redis, RedisPipeline
from bench.peers.stdlib import MultiprocessingQueue, Pipe
from bench.peers.zeromq import ZeroMQ, ZeroMQCalling
from bench.rig import Rig
from bench.settings import Settings

TOPIC = "throughput"
UNIT = "messages/s"

_MESSAGES = 200_000
_PAIRS = 11
_SCALE_PAIRS = 3


def run(settings: Settings) -> None:
    """Ours against pyzmq, then the others for scale."""
    against_pyzmq(
        settings, TOPIC, UNIT, listeners=1, messages=_MESSAGES, pairs=_PAIRS, bars=(4.0, 8.0)
    )
    _calling(settings)
    for peer, messages in _for_scale(settings):
        with Rig(peer) as rig:
            (rates,) = alternate([partial(rig.rate, messages)], settings.pairs(_SCALE_PAIRS))
        settings.scale(TOPIC, "1:1", UNIT, rates, peer.name)


def against_pyzmq(
    settings: Settings,
    topic: str,
    unit: str,
    *,
    listeners: int,
    messages: int,
    pairs: int,
    bars: tuple[float, float | None],
) -> None:
    """One by one and in batches; the rigs stand side by side, and one is running at a time."""
    messages = settings.messages(messages)
    with ExitStack() as stack:
        rigs = [
            stack.enter_context(Rig(kind(settings.directory), listeners=listeners))
            for kind in (Pynotify, PynotifyBatch, PynotifyPieces, ZeroMQ)
        ]
        passes = [partial(rig.rate, messages) for rig in rigs]
        single, batch, pieces, zmq = alternate(passes, settings.pairs(pairs))
    for name, ours, bar in (
        ("single notify, each message a Notify", single, bars[0]),
        ("notify_many and poll_batch().payloads()", batch, bars[1]),
        ("notify_many and poll_batch(4096).payloads()", pieces, None),
    ):
        settings.compare(
            topic, f"1:{listeners}, {name}", unit, ours, zmq, against=ZeroMQ.name, bar=bar
        )


def _calling(settings: Settings) -> None:
    """A consumer that calls a function of Python for each message, on both sides."""
    messages = settings.messages(_MESSAGES)
    with ExitStack() as stack:
        rigs = [
            stack.enter_context(Rig(kind(settings.directory)))
            for kind in (PynotifyCalling, ZeroMQCalling)
        ]
        passes = [partial(rig.rate, messages) for rig in rigs]
        ours, zmq = alternate(passes, settings.pairs(_PAIRS))
    settings.compare(
        TOPIC, "1:1, single notify, a function called for each", UNIT, ours, zmq,
        against=ZeroMQ.name,
    )  # fmt: skip


def _for_scale(settings: Settings) -> list[tuple[Peer, int]]:
    directory, messages = settings.directory, settings.messages(_MESSAGES)
    few = messages // 10
    peers: list[tuple[Peer, int]] = [
        (kind(directory), messages) for kind in (PosixQueue, Pipe, MultiprocessingQueue)
    ]
    if Redis.available():
        peers += [(Redis(directory), few), (RedisPipeline(directory), few)]
    if settings.postgres:
        peers.append((Postgres(directory, settings.postgres), few))
    return peers
