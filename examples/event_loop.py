"""A connection in an event loop, by its descriptor, beside a descriptor of another kind.

A forked child writes to a pipe and notifies; the parent waits for both in one selector.
"""

import os
import selectors

import pynotify

NAME = os.environ.get("SEGMENT", "event-loop")


def child(writing: int) -> None:
    with pynotify.connect(NAME) as conn:
        for number in range(3):
            os.write(writing, b"a line through the pipe\n")
            conn.notify("jobs", f"notification {number}")
        conn.notify("jobs", "end")


def main() -> None:
    reading, writing = os.pipe()
    with pynotify.connect(NAME) as conn, selectors.DefaultSelector() as selector:
        conn.listen("jobs")
        selector.register(reading, selectors.EVENT_READ)
        selector.register(conn, selectors.EVENT_READ)  # it has a fileno()
        if os.fork() == 0:
            child(writing)
            os._exit(0)
        open_ended = True
        while open_ended:
            for key, _events in selector.select():
                if key.fileobj is conn:
                    for note in conn.poll():  # may be empty: the slow timer ticks there too
                        print(note.payload)
                        open_ended = open_ended and note.payload != "end"
                else:
                    print(os.read(reading, 4096).decode(), end="")
    os.wait()


if __name__ == "__main__":
    main()
