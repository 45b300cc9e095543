"""A pool of worker processes that share out the messages of a topic; one of them is killed."""

from __future__ import annotations

import os
import signal

import pynotify

NAME = os.environ.get("SEGMENT", "app")
JOBS, WORKERS = 200, 3


def work() -> None:
    """What a worker does until it is told to stop; any process of this user could do it."""
    with pynotify.connect(NAME) as conn:
        results = conn.topic("results")
        with conn.topic("jobs").channel("workers").consumer(max_in_flight=5) as consumer:
            for message in consumer:
                if message.body == b"stop":
                    message.finish()
                    return
                # The result and the end of the job are one transaction, never one of them alone.
                with conn.transaction(), message:
                    results.publish(str(int(message.body) ** 2), headers={"pid": str(os.getpid())})


def start() -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


pids = [start() for _ in range(WORKERS)]
with pynotify.connect(NAME) as conn:
    done = conn.topic("results").channel("sum")
    conn.topic("jobs").publish_many(str(number) for number in range(JOBS))
    total, by = 0, set()
    with done.consumer(max_in_flight=50) as consumer:
        for received in range(1, JOBS + 1):
            with consumer.get() as message:
                total += int(message.body)
                by.add(message.headers["pid"])
            if received == JOBS // 4:
                os.kill(pids[0], signal.SIGKILL)  # what it had goes to the others, at once
    conn.topic("jobs").publish_many(["stop"] * (WORKERS - 1))
for pid in pids:
    os.waitpid(pid, 0)
assert total == sum(number**2 for number in range(JOBS))
print(f"{JOBS} jobs, {len(by)} workers, one of them killed, each job done once: {total}")
