"""One process to one process."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from bench.figures import Figure, Spread, compare
from bench.pairs import alternate
from bench.peer import Peer
from bench.peers.ours import Pynotify, PynotifyBatch
from bench.peers.posix_queue import PosixQueue
from bench.peers.postgres import Postgres
from bench.peers.redis_pubsub import Redis, RedisPipeline
from bench.peers.stdlib import MultiprocessingQueue, Pipe
from bench.peers.zeromq import ZeroMQ
from bench.rig import Rig
from bench.settings import Settings

TOPIC = "throughput"
COMMAND = "python -m bench --only throughput"
UNIT = "messages/s"

_MESSAGES = 200_000
_PAIRS = 11
_SCALE_PAIRS = 3


def run(settings: Settings) -> None:
    """Ours against pyzmq, then the others for scale."""
    _against_pyzmq(settings)
    for peer, messages in _for_scale(settings):
        _scale(settings, peer, messages)


def _against_pyzmq(settings: Settings) -> None:
    messages = settings.messages(_MESSAGES)
    peers = [kind(settings.directory, messages) for kind in (Pynotify, PynotifyBatch, ZeroMQ)]
    with ExitStack() as stack:
        rigs = [stack.enter_context(Rig(peer)) for peer in peers]
        passes = [partial(rig.rate, messages) for rig in rigs]
        single, batch, zmq = alternate(passes, settings.pairs(_PAIRS))
    for name, ours, bar in (
        ("1:1, single notify, each message a Notify", single, 1.8),
        ("1:1, notify_many and poll_batch().payloads()", batch, 4.0),
    ):
        settings.report(
            compare(TOPIC, name, UNIT, ours, zmq, against=ZeroMQ.name, command=COMMAND, bar=bar)
        )


def _for_scale(settings: Settings) -> list[tuple[Peer, int]]:
    directory, messages = settings.directory, settings.messages(_MESSAGES)
    few = messages // 10
    peers: list[tuple[Peer, int]] = [
        (PosixQueue(directory, messages), messages),
        (Pipe(directory, messages), messages),
        (MultiprocessingQueue(directory, messages), messages),
    ]
    if Redis.available():
        peers += [(Redis(directory, few), few), (RedisPipeline(directory, few), few)]
    if settings.postgres:
        peers.append((Postgres(directory, few, settings.postgres), few))
    return peers


def _scale(settings: Settings, peer: Peer, messages: int) -> None:
    with Rig(peer) as rig:
        (rates,) = alternate([lambda: rig.rate(messages)], settings.pairs(_SCALE_PAIRS))
    settings.report(
        Figure(
            topic=TOPIC,
            name=f"1:1, for scale: {peer.name}",
            unit=UNIT,
            ours=None,
            peer=Spread.of(rates),
            against=peer.name,
            command=COMMAND,
            repetitions=len(rates),
        )
    )
