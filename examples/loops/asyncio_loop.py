"""Receive in an asyncio task by `add_reader`, with the synchronous connection.

    python examples/loops/asyncio_loop.py SEGMENT COUNT

On uvloop it is the same with `uvloop.run(...)`.
"""

import asyncio
import sys

import pynotify


async def main(segment: str, count: int) -> None:
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[pynotify.Notify | pynotify.Gap] = asyncio.Queue()
    with pynotify.connect(segment) as conn:
        conn.listen("jobs")
        loop.add_reader(conn, lambda: [queue.put_nowait(note) for note in conn.poll()])
        while count > 0:
            note = await queue.get()
            print(note.payload, flush=True)
            count -= 1
        loop.remove_reader(conn)  # before the connection is closed


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
