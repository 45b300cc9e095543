"""Receive in a loop of `selectors`, beside whatever else is registered there.

python examples/loops/selectors_loop.py SEGMENT COUNT
"""

import selectors
import sys

import pynotify


def main(segment: str, count: int) -> None:
    with pynotify.connect(segment) as conn, selectors.DefaultSelector() as selector:
        conn.listen("jobs")
        selector.register(conn, selectors.EVENT_READ)
        while count > 0:
            for key, _events in selector.select():
                if key.fileobj is conn:
                    for note in conn.poll():  # may be empty: a slow timer ticks there, too
                        print(note.payload, flush=True)
                        count -= 1
        selector.unregister(conn)  # before the connection is closed, as for any descriptor


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
