"""A full disk: what is refused, what is not, and that consumers make room on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from namespaces import run_on_a_small_disk

DRAIN = """
import os, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import pynotify
name, data_dir, fsync, way = sys.argv[2:]
options = {"data_dir": data_dir, "topic_memory": 32 << 20}
def files():
    return sum(file.stat().st_size for file in Path(data_dir, name).glob("log.*"))
def reopened():
    conn.close()
    pynotify.unlink(name, force=True)
    return pynotify.connect(name, **options)
def fill(topic):
    published = refused = 0
    while refused < 3:  # what is refused makes room of what is over
        try:
            topic.publish(b"%06d" % published + b"x" * 1000)
            published += 1
        except pynotify.DiskFull:
            refused += 1
    return published
conn = pynotify.connect(name, **options)
topic = conn.topic("t", durable=True, fsync=fsync)
channels = [topic.channel("a"), topic.channel("b")]
published = fill(topic)
with open(os.path.join(data_dir, "ballast"), "wb", buffering=0) as file:  # others take the rest
    try:
        while file.write(bytes(4096)):
            pass
    except OSError:
        pass
if way == "finish":
    for part in range(4):  # each is known to the log, whatever happens to the processes
        for channel in channels:
            with channel.consumer(max_in_flight=5, max_attempts=0) as consumer:
                for _ in range(published // 4 + (published % 4 if part == 3 else 0)):
                    consumer.get(5).requeue()
                    consumer.get(5).finish()
        left = [channel.stats().depth for channel in channels]
        conn = reopened()
        topic = conn.topic("t", durable=True)
        channels = [topic.channel("a"), topic.channel("b")]
        assert [channel.stats().depth for channel in channels] == left, (part, left)
    assert left == [0, 0]
elif way == "empty":
    for channel in channels:
        channel.empty()
else:
    topic.delete()
    topic = conn.topic("t", durable=True, fsync=fsync)
again = fill(topic)
assert again > published * 9 // 10, (published, again, files())
topic = reopened().topic("t")
print(topic.stats().unfinished == again or topic.stats())
"""


@pytest.mark.parametrize("way", ["finish", "empty", "delete"])
@pytest.mark.parametrize("fsync", ["none", "interval", "always"])
def test_a_full_disk_can_be_drained(
    segment_name: str, tmp_path: Path, fsync: str, way: str
) -> None:
    """By its consumers, without another byte of room, across restarts; then it is free again."""
    assert run_on_a_small_disk(segment_name, tmp_path, DRAIN, fsync, way, size="3m") == "True"


UNWRITTEN = """
import os, resource, sys
sys.path.insert(0, sys.argv[1])
import pynotify
name, data_dir = sys.argv[2:]
conn = pynotify.connect(name, data_dir=data_dir)
topic = conn.topic("t", durable=True)
consumer = topic.channel("c").consumer(max_in_flight=3)
topic.publish_many([b"1", b"2", b"3"])
messages = [consumer.get(5) for _ in range(3)]
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))  # now no file can be written to
try:
    messages[0].finish()
except pynotify.SyncFailed as error:
    assert "it has happened, but is not in the log" in str(error), error
else:
    raise AssertionError("finish() of what was not written has returned")
try:
    messages[0].finish()
except pynotify.MessageNotInFlight:
    pass
try:
    with conn.transaction():
        messages[1].finish()
except pynotify.Error:
    pass
else:
    raise AssertionError("a commit of what was not written has returned")
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
messages[1].finish()
conn.close()
pynotify.unlink(name, force=True)
with pynotify.connect(name, data_dir=data_dir) as conn:
    print([message.body for message in conn.topic("t").channel("c").peek()])
pynotify.unlink(name)
"""


def test_a_finish_that_could_not_be_written_says_so(segment_name: str, tmp_path: Path) -> None:
    """It holds in memory; the log has it as soon as it can be written again."""
    printed = run_on_a_small_disk(segment_name, tmp_path, UNWRITTEN, size="3m")
    assert printed == "[b'3']"
