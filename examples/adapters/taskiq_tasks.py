"""Tasks for taskiq's workers, without a broker beside them.

SEGMENT=tasks taskiq worker taskiq_tasks:broker --workers 4      # in this folder
SEGMENT=tasks python examples/adapters/taskiq_tasks.py 10
"""

from __future__ import annotations

import asyncio
import os
import sys

from pynotify.contrib.taskiq import PynotifyBroker

broker = PynotifyBroker(os.environ.get("SEGMENT", "tasks"), max_in_flight=10)
JOURNAL = os.environ.get("JOURNAL")


@broker.task(task_name="work")  # the same here and as __main__
async def work(number: int) -> None:
    await asyncio.sleep(0.01)
    line = f"{os.getpid()} {number}\n"
    if JOURNAL is None:
        print(line, end="", flush=True)
    else:
        with open(JOURNAL, "a") as journal:
            journal.write(line)


async def main(count: int) -> None:
    await broker.startup()
    for number in range(count):
        await work.kiq(number)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
