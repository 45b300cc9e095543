"""One process to 10 and to 100 on one channel: every message to everybody."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from bench.figures import compare
from bench.pairs import alternate
from bench.peer import Peer
from bench.peers.ours import Pynotify, PynotifyBatch
from bench.peers.zeromq import ZeroMQ
from bench.rig import Rig
from bench.settings import Settings

TOPIC = "fanout"
COMMAND = "python -m bench --only fanout"
UNIT = "deliveries/s"

_PAIRS = 7
# Listeners, messages of a pass, the bar.
_SIZES = ((10, 50_000, 1.5), (100, 10_000, 1.2))


def run(settings: Settings) -> None:
    """Rigs of both sides stand side by side; only one is running at a time."""
    for listeners, number, bar in _SIZES:
        messages = settings.messages(number)
        peers: list[Peer] = [
            kind(settings.directory, messages) for kind in (Pynotify, PynotifyBatch, ZeroMQ)
        ]
        with ExitStack() as stack:
            rigs = [stack.enter_context(Rig(peer, listeners=listeners)) for peer in peers]
            passes = [partial(rig.rate, messages) for rig in rigs]
            single, batch, zmq = alternate(passes, settings.pairs(_PAIRS))
        settings.report(
            compare(
                TOPIC,
                f"1:{listeners}, single notify, each message a Notify",
                UNIT,
                single,
                zmq,
                against=ZeroMQ.name,
                command=COMMAND,
                bar=bar,
            )
        )
        settings.report(
            compare(
                TOPIC,
                f"1:{listeners}, notify_many and poll_batch().payloads()",
                UNIT,
                batch,
                zmq,
                against=ZeroMQ.name,
                command=COMMAND,
            )
        )
