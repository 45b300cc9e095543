"""Workers that keep prices in a region of dogpile.cache, and forget them together.

python examples/adapters/dogpile_prices.py
"""

from __future__ import annotations

import os
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

from dogpile.cache import make_region

import pynotify
from pynotify.contrib.dogpile import SharedInvalidation

SEGMENT = os.environ.get("SEGMENT", "dogpile-prices")
region = make_region().configure(
    "dogpile.cache.memory", region_invalidator=SharedInvalidation("prices", segment=SEGMENT)
)
prices = Path(os.environ.get("PRICES", tempfile.gettempdir()))


@region.cache_on_arguments()
def price(product: str) -> int:
    print(f"{os.getpid()} reads\n", end="", flush=True)
    return int((prices / product).read_text())


def work(orders: Connection) -> None:
    for product in iter(orders.recv, None):
        orders.send(price(product))


def main() -> None:
    import multiprocessing

    (prices / "tea").write_text("3")
    pipes, workers = [], []
    for _ in range(2):
        ours, theirs = multiprocessing.Pipe()
        workers.append(multiprocessing.Process(target=work, args=(theirs,)))
        workers[-1].start()
        pipes.append(ours)

    def ask() -> list[int]:
        for pipe in pipes:
            pipe.send("tea")
        return [pipe.recv() for pipe in pipes]

    print(ask(), ask(), flush=True)
    (prices / "tea").write_text("4")
    print(ask(), flush=True)
    region.invalidate()
    print(ask(), flush=True)
    for pipe, worker in zip(pipes, workers, strict=True):
        pipe.send(None)
        worker.join()
    pynotify.get(SEGMENT).close()


if __name__ == "__main__":
    main()
