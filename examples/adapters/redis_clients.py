"""Code that was written for redis-py's pub/sub: four listening processes, and one that publishes.

    python examples/adapters/redis_clients.py

What has changed is one line, and there is no server.
"""

from __future__ import annotations

import os
from typing import Any

from pynotify.compat import redis  # it was: import redis

SEGMENT = os.environ.get("SEGMENT", "redis-clients")


def listen() -> None:
    """Ends with the message "stop"."""
    with redis.Redis(SEGMENT, decode_responses=True).pubsub() as subscriber:
        subscriber.psubscribe("sport.*")
        subscriber.subscribe("news")  # last: the publisher waits until all have this one
        for message in subscriber.listen():
            if message["data"] == "stop":
                return
            if message["type"].endswith("message"):
                heard(message)


def heard(message: dict[str, Any]) -> None:
    line = f"{os.getpid()} {message['channel']} {message['data']}\n"
    print(line, end="", flush=True)  # one write: other processes print, too


def main() -> None:
    children = []
    for _ in range(4):
        children.append(os.fork())
        if children[-1] == 0:
            listen()
            os._exit(0)
    publisher = redis.Redis(SEGMENT)
    while publisher.pubsub_numsub("news") != [(b"news", 4)] or publisher.pubsub_numpat() != 1:
        pass  # they are about to subscribe
    counts = [publisher.publish("news", "hello"), publisher.publish("sport.chess", "1-0")]
    publisher.publish("news", "stop")
    for child in children:
        os.waitpid(child, 0)
    print("received by", *counts)


if __name__ == "__main__":
    main()
