"""numpy arrays of 1 MB from one process to one and to four.

PubSub against pyzmq and against multiprocessing.shared_memory with queues (peers/arrays.py).  In
one row a receiver looks at the message's bytes at the beginning of the array, in the other it sums
all of it, which takes the same time for each peer.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from bench.pairs import alternate
from bench.peers.arrays import PynotifyArrays, SharedMemoryQueue, ZeroMQArrays
from bench.rig import Rig
from bench.settings import Settings

TOPIC = "arrays"
UNIT = "arrays/s"

_MESSAGES = 1_000
_VERIFIED = 200
_PAIRS = 7
# Listeners, and the bar against pyzmq where they do not sum.
_SIZES = ((1, 2.0), (4, 4.0))


def run(settings: Settings) -> None:
    """The rigs stand side by side, and one is running at a time."""
    messages = settings.messages(_MESSAGES)
    for listeners, bar in _SIZES:
        for sums in (False, True):
            with ExitStack() as stack:
                rigs = [
                    stack.enter_context(
                        Rig(
                            kind(settings.directory, listeners=listeners, sums=sums),
                            listeners=listeners,
                            verified=_VERIFIED,
                        )
                    )
                    for kind in (PynotifyArrays, ZeroMQArrays, SharedMemoryQueue)
                ]
                passes = [partial(rig.rate, messages) for rig in rigs]
                ours, zmq, stdlib = alternate(passes, settings.pairs(_PAIRS))
            name = f"1 MB to {listeners}{', summed' if sums else ''}"
            settings.compare(
                TOPIC, name, UNIT, ours, zmq, against=ZeroMQArrays.name, bar=None if sums else bar
            )
            settings.compare(TOPIC, name, UNIT, ours, stdlib, against=SharedMemoryQueue.name)
