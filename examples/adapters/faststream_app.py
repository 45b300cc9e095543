"""Workers of a FastStream application, without a broker beside them.

SEGMENT=mails faststream run faststream_app:app --workers 4      # in this folder
SEGMENT=mails python examples/adapters/faststream_app.py 10
"""

from __future__ import annotations

import asyncio
import os
import sys

from faststream import AckPolicy, FastStream

from pynotify.contrib.faststream import PynotifyBroker, TopicSub

broker = PynotifyBroker(os.environ.get("SEGMENT", "mails"))
app = FastStream(broker)
JOURNAL = os.environ.get("JOURNAL")


# One of the workers gets each of these, again when it fails; the result goes to every listener.
@broker.subscriber(
    topic=TopicSub("mails", dead_letter="broken"),
    max_workers=10,
    ack_policy=AckPolicy.NACK_ON_ERROR,
)
@broker.publisher("sent")
async def mail(number: int) -> str:
    await asyncio.sleep(0.01)
    line = f"{os.getpid()} {number}\n"
    if JOURNAL is None:
        print(line, end="", flush=True)
    else:
        with open(JOURNAL, "a") as journal:
            journal.write(line)
    return f"{number} by {os.getpid()}"


# Each worker gets these, and the one that is asked answers.
@broker.subscriber("pid")
async def pid() -> int:
    return os.getpid()


async def main(count: int) -> None:
    async with broker:
        await broker.publish_batch(*range(count), topic="mails")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
