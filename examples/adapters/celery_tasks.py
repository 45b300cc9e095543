"""Celery without a broker beside it: tasks and their results by a segment.

SEGMENT=tasks celery -A celery_tasks worker --concurrency 4      # in this folder
SEGMENT=tasks python examples/adapters/celery_tasks.py 10
"""

from __future__ import annotations

import os
import sys

from celery import Celery, group

import pynotify.contrib.kombu  # makes pynotify:// known  # noqa: F401

app = Celery(
    "celery_tasks",
    broker=f"pynotify://{os.environ.get('SEGMENT', 'tasks')}",
    backend="rpc://",
)
app.conf.update(
    task_acks_late=True,  # what a killed worker had comes to another one
    worker_prefetch_multiplier=2,
)
JOURNAL = os.environ.get("JOURNAL")


@app.task(name="square")
def square(number: int) -> int:
    if JOURNAL is not None:
        with open(JOURNAL, "a") as journal:
            journal.write(f"{os.getppid()} {number}\n")
    return number * number


if __name__ == "__main__":
    results = group(square.s(number) for number in range(int(sys.argv[1]))).apply_async()
    print(sum(results.get(timeout=60)))
