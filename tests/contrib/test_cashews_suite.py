"""cashews' own tests of a cache, with our backend."""

from __future__ import annotations

from pathlib import Path

import pytest

import pynotify
from requirement import require

try:
    import cashews  # noqa: F401
except ImportError as missing:
    require("cashews", str(missing))

from suites import fetch, run

pytestmark = pytest.mark.full

OTHERS = (
    # of Redis
    "tests/test_client_side_cache.py",
    "tests/test_redis_down.py",
    # of pickles in Redis and on disk
    "tests/test_pickle_serializer.py",
    # of the URLs of other stores
    "tests/test_settings_url.py",
)
WITH_REDIS = "tests/test_tags_feature.py::test_delete_tags_separate_backend"


def test_cashews(segment_name: str, tmp_path: Path) -> None:
    folder = fetch("cashews", "7.6.0")
    options = ["-p", "no:warnings", "--deselect", WITH_REDIS]
    options += [f"--ignore={folder / name}" for name in OTHERS]
    with pynotify.open(segment_name, max_generations=4096):
        done = run(folder, "cashews_suite", ["tests"], tmp_path, *options, SEGMENT=segment_name)
    pynotify.unlink(segment_name, force=True, missing_ok=True)
    done.expect(passed=267)
