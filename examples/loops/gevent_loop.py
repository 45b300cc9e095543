"""Receive in a greenlet; the others run while it waits.

    python examples/loops/gevent_loop.py SEGMENT COUNT

The same with everything patched: python -m gevent.monkey examples/loops/gevent_loop.py ...
`conn.wait()` and `conn.notifies()` would stop all greenlets: wait for the descriptor instead.
"""

import sys

import gevent
from gevent.socket import wait_read

import pynotify


def receive(conn: pynotify.Connection, count: int) -> None:
    while count > 0:
        wait_read(conn.fileno())
        for note in conn.poll():  # may be empty: a slow timer ticks on the same descriptor
            print(note.payload, flush=True)
            count -= 1


if __name__ == "__main__":
    with pynotify.connect(sys.argv[1]) as conn:
        conn.listen("jobs")
        gevent.spawn(receive, conn, int(sys.argv[2])).get()
