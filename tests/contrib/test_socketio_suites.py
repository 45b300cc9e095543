"""The tests of python-socketio and Flask-SocketIO, with our managers.

Left out: python-socketio's test_redis_manager.py (URLs and connections of Redis), and its other
files, which have no client manager of a message queue.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from suites import fetch, run

pytestmark = pytest.mark.full


def test_python_socketio(segment_name: str, tmp_path: Path) -> None:
    folder = fetch("python_socketio", "5.18.1")
    paths = ["tests/common/test_pubsub_manager.py", "tests/async/test_pubsub_manager.py"]
    run(folder, "socketio_suite", paths, tmp_path, SEGMENT=segment_name).expect(passed=100)


def test_flask_socketio(segment_name: str, tmp_path: Path) -> None:
    folder = fetch("flask_socketio", "5.7.0")
    paths = ["test_socketio.py"]
    run(folder, "socketio_suite", paths, tmp_path, SEGMENT=segment_name).expect(passed=43)
