"""Actors of dramatiq, without a broker beside them.

SEGMENT=tasks dramatiq dramatiq_tasks --processes 4 --threads 2      # in this folder
SEGMENT=tasks python examples/adapters/dramatiq_tasks.py 10
"""

from __future__ import annotations

import os
import sys
import time

import dramatiq

from pynotify.contrib.dramatiq import PynotifyBroker

broker = PynotifyBroker(os.environ.get("SEGMENT", "tasks"))
dramatiq.set_broker(broker)
JOURNAL = os.environ.get("JOURNAL")


@dramatiq.actor
def work(number: int) -> None:
    time.sleep(0.01)
    line = f"{os.getpid()} {number}\n"
    if JOURNAL is None:
        print(line, end="", flush=True)
    else:
        with open(JOURNAL, "a") as journal:
            journal.write(line)


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        work.send(number)
