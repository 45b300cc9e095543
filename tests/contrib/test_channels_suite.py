"""The tests of channels_redis, with our layer."""

from __future__ import annotations

from pathlib import Path

import pytest

from suites import fetch, run

pytestmark = pytest.mark.full

#: What is left out, and why.
LEFT_OUT = {
    "test_default_group_key_format": "keys of Redis",
    "test_custom_group_key_format": "keys of Redis",
    "test_receive_buffer_respects_capacity": "a buffer inside of its layer",
    "test_layer_close": "closes nothing: it looks at tasks of Redis connections",
    "test_loop_instance_channel_layer_reference": "its layer has one of its own for each loop",
    "test_multi_event_loop_garbage_collection": "its layer has one of its own for each loop",
    "test_auto_reconnect": "closes connections to a Redis",
    "test_receive_on_non_owned_general_channel": "sends a str; the specification has a dict",
}


def test_channels_redis(segment_name: str, tmp_path: Path) -> None:
    folder = fetch("channels_redis", "4.3.0")
    without = [f"--deselect={file}::{name}" for name in LEFT_OUT for file in FILES]
    outcome = run(folder, "channels_suite", FILES, tmp_path, *without, SEGMENT=segment_name)
    # One that they expect to fail does, too.
    outcome.expect(passed=36, skipped=1)


FILES = ["tests/test_core.py", "tests/test_pubsub.py"]
