"""From the call of notify() to the Notify in the hand of a Python process that slept.

One message each millisecond, the sender's clock before the call, the receiver's clock once it
holds the message; the stamp travels in the payload, for every peer alike.  Pinned: to one CPU,
and to two, which on a virtual machine mostly measures how long the hypervisor takes to interrupt
the other CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from bench.figures import Figure, Spread, compare
from bench.peer import Peer
from bench.peers.ours import Pynotify
from bench.peers.posix_queue import PosixQueue
from bench.peers.redis_pubsub import Redis
from bench.peers.stdlib import Pipe
from bench.peers.zeromq import ZeroMQ
from bench.rig import Rig
from bench.settings import Settings

TOPIC = "latency"
COMMAND = "python -m bench --only latency"
UNIT = "us"

_SAMPLES = 2_000
_PAUSE = 0.001
_PAIRS = 11
_SCALE_PAIRS = 3
_QUANTILES = (("p50", 0.50, 1.2), ("p99", 0.99, 1.5))
# Sender's CPU, receiver's CPU; "two CPUs" turns round with every pair.
PLACES = {"one CPU": ((0, 0), (1, 1)), "two CPUs": ((0, 1), (1, 0))}


def run(settings: Settings) -> None:
    """Ours against posix_ipc.MessageQueue with bars, then the others for scale."""
    peers: list[Peer] = [kind(settings.directory, 0) for kind in (Pynotify, PosixQueue)]
    with ExitStack() as stack:
        ours, queue = (stack.enter_context(Rig(peer)) for peer in peers)
        for place in PLACES:
            ours_ns, queue_ns = alternate_rigs(settings, [ours, queue], place, _PAIRS)
            for label, share, bar in _QUANTILES:
                settings.report(
                    compare(
                        TOPIC,
                        f"{label}, {place}",
                        UNIT,
                        quantile(ours_ns, share),
                        quantile(queue_ns, share),
                        against=PosixQueue.name,
                        command=COMMAND,
                        bar=bar,
                        at_most=True,
                    )
                )
    _for_scale(settings)


def _for_scale(settings: Settings) -> None:
    kinds: list[type[Peer]] = [Pipe, ZeroMQ]
    if Redis.available():
        kinds.append(Redis)
    for kind in kinds:
        with Rig(kind(settings.directory, 0)) as rig:
            for place in PLACES:
                (passes,) = alternate_rigs(settings, [rig], place, _SCALE_PAIRS)
                for label, share, _bar in _QUANTILES:
                    values = quantile(passes, share)
                    settings.report(
                        Figure(
                            topic=TOPIC,
                            name=f"{label}, {place}, for scale: {kind.name}",
                            unit=UNIT,
                            ours=None,
                            peer=Spread.of(values),
                            against=kind.name,
                            command=COMMAND,
                            repetitions=len(values),
                        )
                    )


def alternate_rigs(
    settings: Settings, rigs: Sequence[Rig], place: str, pairs: int
) -> list[list[list[int]]]:
    """Sorted latencies of each pass of each rig; one warm-up, both orders, both placements."""
    samples: list[list[list[int]]] = [[] for _ in rigs]
    for repetition in range(settings.pairs(pairs) + 1):
        cpus = PLACES[place][repetition // 2 % 2]
        order = list(range(len(rigs)))
        if repetition % 2:
            order.reverse()
        for i in order:
            rigs[i].pin(*cpus)
            taken = rigs[i].latencies(settings.messages(_SAMPLES), _PAUSE)
            if repetition:
                samples[i].append(taken)
    return samples


def quantile(passes: Sequence[Sequence[int]], share: float) -> list[float]:
    """Of each pass, in us."""
    return [taken[min(int(len(taken) * share), len(taken) - 1)] / 1000 for taken in passes]
