"""Workers that keep prices in a cache of cashews, and forget them together.

python examples/adapters/cashews_prices.py
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

from cashews import Cache

import pynotify
import pynotify.contrib.cashews

SEGMENT = os.environ.get("SEGMENT", "cashews-prices")
prices = Path(os.environ.get("PRICES", tempfile.gettempdir()))


cache = Cache()
cache.setup(f"pynotify://{SEGMENT}?name=prices&check_interval=0")


@cache(ttl="10m", key="price:{product}", tags=["prices"])
async def price(product: str) -> int:
    print(f"{os.getpid()} reads\n", end="", flush=True)
    return int((prices / product).read_text())


async def work(orders: Connection) -> None:
    for product in iter(orders.recv, None):
        orders.send(await price(product))


def main() -> None:
    (prices / "tea").write_text("3")
    pipes, workers = [], []
    for _ in range(2):
        ours, theirs = multiprocessing.Pipe()
        workers.append(
            multiprocessing.Process(target=lambda end: asyncio.run(work(end)), args=(theirs,))
        )
        workers[-1].start()
        pipes.append(ours)

    def ask() -> list[int]:
        for pipe in pipes:
            pipe.send("tea")
        return [pipe.recv() for pipe in pipes]

    print(ask(), ask(), flush=True)
    (prices / "tea").write_text("4")
    print(ask(), flush=True)
    asyncio.run(cache.delete_tags("prices"))
    print(ask(), flush=True)
    for pipe, worker in zip(pipes, workers, strict=True):
        pipe.send(None)
        worker.join()
    pynotify.get(SEGMENT).close()


if __name__ == "__main__":
    main()
