"""What notifications and topics cost with this checkout and with another one, in pairs.

    python -m bench.before /path/to/the/other/checkout [--quick]

The other one has its extension built (`python setup.py build_ext --inplace`).  Each
pass is a process of its own, which measures its own CPU time, so that others on the machine change
little; the two take turns.  A ratio is our time by the other's, and is to be 1.05 at most.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.pairs import alternate
from bench.report import running

TOPIC = "before"
COMMAND = "python -m bench.before"
_BAR = 1.05
_PAIRS = 9
_MESSAGES = 20_000

_PASS = """
import json, os, random, sys, tempfile, time
import pynotify

n, directory = int(sys.argv[1]), sys.argv[2]
name = f"bench-before-{os.getpid()}"
body = b"x" * 200
found = {}
# Where a pool of the interpreter's allocator ends is luck, which is worth a tenth of a notify().
luck = [10**10 + n for n in range(random.randrange(600))]
luck += [bytes(16 * n) for n in range(30) for _ in range(random.randrange(600))]


def timed(what, work, times):
    begin = time.thread_time()
    for _ in range(times):
        work()
    found[what] = (time.thread_time() - begin) / times * 1e6


def hear(conn, other):
    other.listen("a")

    def one():
        conn.notify("a", "payload")
        other.poll()

    def many():
        for _ in range(100):
            conn.notify("a", "payload")
        other.poll()

    def at_once():
        conn.notify_many("a", payloads)
        other.poll()

    def columns():
        conn.notify_many("a", payloads)
        other.poll_batch()

    def transactions():
        with conn.transaction():
            conn.notify("a", "x")
            conn.notify("a", "y")
        other.poll()

    payloads = [str(i) for i in range(100)]
    timed("notify, poll", one, n)
    timed("100 by notify, poll", many, n // 100)
    timed("100 by notify_many, poll", at_once, n // 10)
    timed("100 by notify_many, poll_batch", columns, n // 10)
    timed("two notify in a transaction, poll", transactions, n // 4)
    other.unlisten("a")


def with_headers(conn, other):
    # a checkout may have none
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    other.listen("a")

    def one():
        conn.notify("a", "payload", headers=headers)
        other.poll()

    def look():
        conn.notify("a", "payload", headers=headers)
        other.poll()[0].headers

    try:
        timed("notify with headers, poll", one, n)
        timed("notify with headers, poll, look at them", look, n)
    except TypeError:
        pass


def objects(conn, other):
    with pynotify.PubSub(conn) as sender, pynotify.PubSub(other) as listener:
        listener.subscribe("a")

        def many(**more):
            for _ in range(100):
                sender.publish("a", "payload", **more)
            listener.run(0)

        timed("100 by publish of a PubSub, run", many, n // 100)
        try:
            many(headers={"k": "v"})
        except TypeError:
            return
        headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        timed("100 by publish with headers, run", lambda: many(headers=headers), n // 100)


def measure(kind, topic, conn):
    channel = topic.channel("c")
    with channel.consumer(max_in_flight=100) as consumer:
        for _ in range(100):
            topic.publish(body)
            consumer.get(5).finish()

        def pair():
            topic.publish(body)
            consumer.get(5).finish()

        def hundred():
            topic.publish_many([body] * 100)
            for _ in range(100):
                consumer.get(5).finish()

        def transactions():
            with conn.transaction():
                topic.publish(body)
            message = consumer.get(5)
            with conn.transaction():
                message.finish()

        timed(f"{kind}: publish, get, finish", pair, n)
        timed(f"{kind}: 100 by publish_many, then get, finish", hundred, n // 100)
        timed(f"{kind}: publish and finish in transactions", transactions, n // 4)
        timed(f"{kind}: put off", lambda: topic.publish(body, delay=3600), n // 4)
        channel.empty()


try:
    with pynotify.connect(name, data_dir=directory, topic_memory=64 << 20) as conn:
        measure("memory", conn.topic("memory"), conn)
        measure("durable", conn.topic("durable", durable=True, fsync="none"), conn)
        timed("notify", lambda: conn.notify("a", "b"), n)
        with pynotify.connect(name) as other:
            hear(conn, other)
            with_headers(conn, other)
            objects(conn, other)
    with pynotify.connect(name, data_dir=directory) as conn:
        many = conn.topic("many")
        channels = [many.channel(f"c{i}") for i in range(10)]
        timed("publish to 10 channels", lambda: many.publish(body), n // 10)
finally:
    pynotify.unlink(name, force=True)
print(json.dumps(found))
"""


class _Side:
    """A checkout; all figures of a pass are had at once."""

    def __init__(self, checkout: Path, messages: int) -> None:
        self._environment = {**os.environ, "PYTHONPATH": str(checkout)}
        self._messages = messages
        self.passes: list[dict[str, float]] = []

    def run(self) -> float:
        with tempfile.TemporaryDirectory(prefix="bench-before-") as directory:
            done = subprocess.run(
                [sys.executable, "-c", _PASS, str(self._messages), directory],
                env=self._environment,
                cwd=directory,
                stdout=subprocess.PIPE,
                check=True,
            )
        self.passes.append(json.loads(done.stdout))
        return 0.0


def main() -> int:
    parser = argparse.ArgumentParser(COMMAND, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", type=Path, help="a checkout whose extension is built")
    parser.add_argument("--quick", action="store_true", help="fewer messages and pairs")
    options = parser.parse_args()
    slower = False
    with running(None, quick=options.quick) as settings:
        ours, other = (
            _Side(path.resolve(strict=True), settings.messages(_MESSAGES))
            for path in (Path(__file__).parents[1], options.other)
        )
        alternate([ours.run, other.run], settings.pairs(_PAIRS))
        for name in ours.passes[0]:
            now = [each[name] for each in ours.passes[1:]]
            if name not in other.passes[0]:
                settings.alone(TOPIC, name, "us", now, command=COMMAND)
                continue
            before = [each[name] for each in other.passes[1:]]
            more = {"against": "the other checkout", "command": COMMAND}
            figure = settings.compare(
                TOPIC, name, "us", now, before, bar=_BAR, at_most=True, **more
            )
            slower |= not figure.passed
    return int(slower)


if __name__ == "__main__":
    sys.exit(main())
