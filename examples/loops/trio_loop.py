"""Receive in a trio task; the others run while it waits.

    python examples/loops/trio_loop.py SEGMENT COUNT

`conn.wait()` and `conn.notifies()` would stop all tasks: wait for the descriptor instead.
"""

import sys

import trio

import pynotify


async def receive(conn: pynotify.Connection, count: int) -> None:
    while count > 0:
        await trio.lowlevel.wait_readable(conn)
        for note in conn.poll():  # may be empty: a slow timer ticks on the same descriptor
            print(note.payload, flush=True)
            count -= 1


async def main(segment: str, count: int) -> None:
    with pynotify.connect(segment) as conn:
        conn.listen("jobs")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive, conn, count)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]))
