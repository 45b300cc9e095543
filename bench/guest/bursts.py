"""Bursts for a hundred subscriptions of one process: how many signals, and how many reads.

Counted, not timed.  Each burst is one transaction with a notification for every subscription, sent
when the process sleeps; a thread waits in each subscription.
"""

from __future__ import annotations

import os
import threading
import time
from multiprocessing.connection import Connection

import pynotify
from bench.rig import Child, Lost
from bench.settings import Settings

_SUBSCRIPTIONS = 100
_BURSTS = 200
_PATIENCE = 30.0


def run(settings: Settings, topic: str) -> None:
    name = f"bench-bursts-{os.getpid()}"
    bursts = settings.messages(_BURSTS)
    with pynotify.open(name) as engine:
        listener = Child(lambda pipe: _listen(pipe, engine, bursts))
        listener.answer()
        with engine.connect() as conn:
            before = engine.stat().signals_sent
            for _ in range(bursts):
                _until_it_sleeps(engine)
                with conn.transaction():
                    for number in range(_SUBSCRIPTIONS):
                        conn.notify(f"c{number}", "x")
                listener.answer()
            signals = engine.stat().signals_sent - before
        reads = listener.answer()
        listener.end()
    pynotify.unlink(name, force=True)
    for what, count in (("signals", signals), ("reads", reads)):
        name = f"{what} a burst, {_SUBSCRIPTIONS} subscriptions"
        settings.alone(
            topic, name, what, [count / bursts], repetitions=bursts, bar=1.0, at_most=True
        )


def _until_it_sleeps(engine: pynotify.Engine) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not any(row.channels and row.asleep for row in engine.stat().backends):
        if time.monotonic() > deadline:
            raise Lost("the listener does not go to sleep")
        time.sleep(0.001)


def _listen(pipe: Connection, engine: pynotify.Engine, bursts: int) -> None:
    conn = engine.connect()
    reads = 0
    reader = conn.link.receiver.reader
    read_routed = reader.read_routed

    def counted(*args: object, **options: object) -> object:
        nonlocal reads
        found = read_routed(*args, **options)  # type: ignore[arg-type]
        reads += bool(found)
        return found

    reader.read_routed = counted  # type: ignore[method-assign, assignment]
    all = threading.Barrier(_SUBSCRIPTIONS + 1)

    def handle(subscription: pynotify.Subscription) -> None:
        for _ in range(bursts):
            subscription.next()
            all.wait()

    for number in range(_SUBSCRIPTIONS):
        subscription = conn.subscribe(f"c{number}")
        threading.Thread(target=handle, args=(subscription,), daemon=True).start()
    pipe.send("ready")
    for _ in range(bursts):
        all.wait(_PATIENCE)
        pipe.send("heard")
    pipe.send(reads)
    pipe.recv()
