"""The commands, and what each of them does: known before any of them is imported."""

from __future__ import annotations

COMMANDS = {
    "listen": "print notifications as they come",
    "notify": "send a notification",
    "topics": "look at topics and channels, publish, consume, pause, configure, requeue, fsck",
    "create": "make a segment with options",
    "ls": "list the segments of this user",
    "stat": "show the counters and backends of a segment",
    "top": "watch the rates and backends of a segment",
    "doctor": "look for what is wrong, and say what to do",
    "rm": "remove segments",
    "bench": "measure throughput and latency on this machine",
    "demo": "run the demonstration (python -m pynotify.demo)",
    "exporter": "serve the figures to Prometheus",
    "bridge": "be the way to a PostgreSQL, for all listeners of this host",
    "gateway": "speak PostgreSQL's protocol on a segment: LISTEN and NOTIFY, and no database",
    "completion": "print what a shell reads to complete commands, options and segments",
}
