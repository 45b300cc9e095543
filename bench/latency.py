"""From the call of notify() to the Notify in the hand of a Python process that slept.

One message each millisecond, the sender's clock before the call, the receiver's clock once it
holds the message; the stamp travels in the payload, for every peer alike.  Pinned: to one CPU,
and to two, which on a virtual machine mostly measures how long the hypervisor takes to interrupt
the other CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count

from bench.pairs import alternate
from bench.peer import Peer
from bench.peers.ours import Pynotify
from bench.peers.posix_queue import PosixQueue
from bench.peers.redis_server import Redis
from bench.peers.stdlib import Pipe
from bench.peers.zeromq import ZeroMQ
from bench.rig import LatencyCrew, Rig
from bench.settings import Settings

TOPIC = "latency"
UNIT = "us"

SAMPLES = 2_000
_PAIRS = 11
_SCALE_PAIRS = 3
_QUANTILES = (("p50", 0.50), ("p99", 0.99))
_BARS = {
    ("p50", "one CPU"): 1.5,
    ("p50", "two CPUs"): 1.1,
    ("p99", "one CPU"): 1.5,
    ("p99", "two CPUs"): 1.5,
}
# Sender's CPU, receiver's CPU; each turns round with every second pair.
PLACES = {"one CPU": ((0, 0), (1, 1)), "two CPUs": ((0, 1), (1, 0))}


def run(settings: Settings) -> None:
    """Ours against posix_ipc.MessageQueue with bars, then the others for scale."""
    peers: list[Peer] = [kind(settings.directory) for kind in (Pynotify, PosixQueue)]
    with ExitStack() as stack:
        rigs = [stack.enter_context(Rig(peer)) for peer in peers]
        for place in PLACES:
            for label, (ours, queue) in quantiles(settings, rigs, place, _PAIRS):
                settings.compare(
                    TOPIC, f"{label}, {place}", UNIT, ours, queue,
                    against=PosixQueue.name, bar=_BARS[label, place], at_most=True,
                )  # fmt: skip
    kinds: list[type[Peer]] = [Pipe, ZeroMQ]
    if Redis.available():
        kinds.append(Redis)
    for kind in kinds:
        with Rig(kind(settings.directory)) as rig:
            for place in PLACES:
                for label, (values,) in quantiles(settings, [rig], place, _SCALE_PAIRS):
                    settings.scale(TOPIC, f"{label}, {place}", UNIT, values, kind.name)


def quantiles(
    settings: Settings, crews: Sequence[LatencyCrew], place: str, pairs: int
) -> Iterator[tuple[str, list[list[float]]]]:
    """By name, of each crew one for each pass, in us; both orders, both placements."""
    passes = [_pass(crew, place, settings.messages(SAMPLES)) for crew in crews]
    samples = alternate(passes, settings.pairs(pairs))
    for label, share in _QUANTILES:
        yield label, [[_quantile(taken, share) for taken in each] for each in samples]


def _pass(crew: LatencyCrew, place: str, messages: int) -> Callable[[], list[int]]:
    numbers = count()

    def run() -> list[int]:
        crew.pin(*PLACES[place][next(numbers) // 2 % 2])
        return crew.latencies(messages)

    return run


def _quantile(taken: Sequence[int], share: float) -> float:
    return taken[min(int(len(taken) * share), len(taken) - 1)] / 1000
