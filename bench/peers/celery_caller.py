"""Calls tasks for `python -m bench --only celery`: reads "KIND COUNT", says how many seconds."""

from __future__ import annotations

import os
import sys
import time

from celery import group

from bench.peers.celery_app import with_result, without_result


def seconds(kind: str, count: int, done: int) -> float:
    """Until all are done, or all results are there."""
    begin = time.perf_counter()
    if kind == "with_result":
        got = group(with_result.s(number) for number in range(count)).apply_async().get(timeout=300)
        assert got == list(range(count))
    else:
        for _ in range(count):
            without_result.delay()
        left = count
        while left:
            left -= len(os.read(done, left))
    return time.perf_counter() - begin


def main() -> None:
    """One answer a line, until there is no line more."""
    done = os.open(os.environ["DONE"], os.O_RDWR)  # which waits for no writer
    for line in sys.stdin:
        kind, count = line.split()
        print(seconds(kind, int(count), done), flush=True)


if __name__ == "__main__":
    main()
