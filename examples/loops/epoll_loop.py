"""Receive in an epoll loop, level-triggered.

    python examples/loops/epoll_loop.py SEGMENT COUNT

With `select.EPOLLIN | select.EPOLLET` the same loop works as well, since it reads until
nothing is left.  (The descriptor is an epoll descriptor itself; EPOLLEXCLUSIVE refuses those.)
"""

import select
import sys

import pynotify


def main(segment: str, count: int) -> None:
    with pynotify.connect(segment) as conn, select.epoll() as epoll:
        conn.listen("jobs")
        epoll.register(conn, select.EPOLLIN)
        while count > 0:
            for descriptor, _events in epoll.poll():
                if descriptor == conn.fileno():
                    for note in conn.poll():  # may be empty: a slow timer ticks there, too
                        print(note.payload, flush=True)
                        count -= 1
        epoll.unregister(conn)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
