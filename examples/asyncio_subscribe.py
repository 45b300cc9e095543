"""A server in asyncio: one connection for the process, a subscription for each request.

Every client that connects gets what is published from then on, a line each.  Two clients of the
server are in this program, too; what is published comes from a child process.
"""

import asyncio
import os
from contextlib import asynccontextmanager
from functools import partial

import pynotify

NAME = os.environ.get("SEGMENT", "asyncio-subscribe")


async def handle(
    conn: pynotify.AsyncConnection, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """One request.  A slow client misses messages, and delays no other."""
    async with conn.subscribe("news", maxlen=100) as news:
        writer.write(b"listening\n")
        async for note in news:
            writer.write(b"(some are missing)\n" if note.channel is None else note.data + b"\n")
            await writer.drain()
            if note.channel is not None and note.payload == "end":
                break
    writer.close()


@asynccontextmanager
async def serving():  # what ASGI calls the lifespan
    async with (
        await pynotify.AsyncConnection.connect(NAME) as conn,
        await asyncio.start_server(partial(handle, conn), "127.0.0.1") as server,
    ):
        yield server.sockets[0].getsockname()


async def main() -> None:
    async with serving() as address:
        clients = [await asyncio.open_connection(*address) for _ in range(2)]
        for reader, _writer in clients:
            await reader.readline()  # "listening"
        if os.fork() == 0:
            with pynotify.connect(NAME) as conn:
                conn.notify_many("news", ["one", "two", "end"])
            os._exit(0)
        for reader, writer in clients:
            print((await reader.read()).decode().split())
            writer.close()
        os.wait()


if __name__ == "__main__":
    asyncio.run(main())
