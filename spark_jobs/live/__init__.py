"""``live``: the latency of logs that are still being written."""
