"""aiocache's own tests of its memory cache, with ours."""

from __future__ import annotations

from pathlib import Path

import pytest

import pynotify
from requirement import require

try:
    import aiocache  # noqa: F401
except ImportError as missing:
    require("aiocache", str(missing))

from suites import fetch, run

pytestmark = pytest.mark.full

#: The others are of Redis and memcached, mock the cache, or look into its dict.
TESTS = ["tests/acceptance"]


def test_aiocache(segment_name: str, tmp_path: Path) -> None:
    folder = fetch("aiocache", "0.12.3")
    options = ["-m", "not redis and not memcached", "-p", "no:warnings"]
    with pynotify.open(segment_name, max_generations=4096):
        done = run(folder, "aiocache_suite", TESTS, tmp_path, *options, SEGMENT=segment_name)
    pynotify.unlink(segment_name, force=True, missing_ok=True)
    done.expect(passed=162)
