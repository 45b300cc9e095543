"""Four workers that read a file through their caches, of which one is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pynotify
from pynotify._connect import close_shared
from receiving import wait_until

Work = Callable[[str, Path, Connection], None]
"""Reads the number in that file again and again. It says what it has whenever it is asked, and
returns when it is told to `END`."""
END = "end"


def asked(orders: Connection, found: int) -> bool:
    """Between two reads: answers, if it was asked. False: it is told to end."""
    if orders.poll():
        if orders.recv() == END:
            return False
        orders.send(found)
    return True


def check_never_stale(
    segment: str,
    folder: Path,
    work: Work,
    forget: Callable[[], object],
    *,
    rounds: int = 40,
    settled: bool = False,
) -> None:
    """After `forget` no worker has what was read before, in the middle of reading or not.

    `settled`: what is in the middle ends before, since the cache promises nothing of that.
    """
    path = folder / "number"
    path.write_text("0")
    fresh = multiprocessing.get_context("spawn")
    workers, pipes = [], []
    for _ in range(4):
        ours, theirs = fresh.Pipe()
        workers.append(fresh.Process(target=work, args=(segment, path, theirs)))
        workers[-1].start()
        theirs.close()  # one that dies is told from one that is slow
        pipes.append(ours)

    def ask() -> list[int]:
        for pipe in pipes:
            pipe.send("what do you have?")
        return [pipe.recv() for pipe in pipes]

    try:
        for number in range(1, rounds + 1):
            (folder / "draft").write_text(str(number))
            (folder / "draft").replace(path)
            if settled:
                ask()
            forget()
            ask()  # each has called since
            assert ask() == [number] * len(pipes)
            if number == rounds // 3:
                os.kill(workers[0].pid or 0, signal.SIGKILL)
                pipes.pop(0).close()
        for pipe in pipes:
            pipe.send(END)
    finally:
        for pipe in pipes:
            pipe.close()
        for worker in workers:
            worker.join()
        close_shared(segment)
    with pynotify.open(segment) as opened:
        wait_until(lambda: not opened.stat().backends, "their slots are free")
