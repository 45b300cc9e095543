"""A client of the soak, on asyncpg: it notifies, and checks what all others send."""

import asyncio
import sys

import asyncpg


async def main(host: str, port: str, name: str) -> None:
    last: dict[str, int] = {}
    mine = asyncio.Event()
    broken = asyncio.get_running_loop().create_future()

    def check(_conn: object, _pid: int, _channel: str, payload: str) -> None:
        sender, number = payload.split()
        if last.get(sender, int(number) - 1) != int(number) - 1 and not broken.done():
            broken.set_result(f"{sender}: {number} after {last[sender]}")
        last[sender] = int(number)
        if sender == name:
            mine.set()

    conn = await asyncpg.connect(host=host, port=int(port), user="me", database="default")
    await conn.add_listener("soak", check)
    number = 0
    while not broken.done():
        number += 1
        mine.clear()
        await conn.execute("SELECT pg_notify('soak', $1)", f"{name} {number}")
        await mine.wait()
    print("broken", broken.result(), flush=True)
    sys.exit(3)


asyncio.run(main(*sys.argv[1:]))
