"""A connection in asyncio, by its descriptor: `add_reader`, no thread, no signal handler."""

import asyncio
import os

import pynotify

NAME = os.environ.get("SEGMENT", "asyncio-reader")


async def main() -> None:
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[pynotify.Notify] = asyncio.Queue()
    with pynotify.connect(NAME) as conn:
        conn.listen("jobs")
        loop.add_reader(conn.fileno(), lambda: [queue.put_nowait(note) for note in conn.poll()])
        if os.fork() == 0:
            with pynotify.connect(NAME) as sender:
                sender.notify_many("jobs", ["one", "two", "three"])
            os._exit(0)
        for _ in range(3):
            note = await queue.get()
            print(note.channel, note.payload)
        loop.remove_reader(conn.fileno())
    os.wait()


asyncio.run(main())
