"""Receive in a select() loop, with nothing but the descriptor.

    python examples/loops/select_loop.py SEGMENT COUNT

It ends after COUNT messages.  Any other process can send them:
    python -c "import pynotify; pynotify.connect('SEGMENT').notify('jobs', 'hello')"
"""

import select
import sys

import pynotify


def main(segment: str, count: int) -> None:
    with pynotify.connect(segment) as conn:
        conn.listen("jobs")
        while count > 0:
            select.select([conn], [], [])
            for note in conn.poll():  # may be empty: a slow timer ticks on the same descriptor
                print(note.payload, flush=True)
                count -= 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
