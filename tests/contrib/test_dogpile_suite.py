"""dogpile.cache's own tests of regions, with our strategy of invalidation."""

from __future__ import annotations

from pathlib import Path

import pytest

import pynotify
from requirement import require

try:
    import dogpile.cache  # noqa: F401
except ImportError as missing:
    require("dogpile", str(missing))

from suites import fetch, run

pytestmark = pytest.mark.full

#: The class inherits every test of a region.  The other files are of backends, proxies and
#: functions, which ask no strategy.
TESTS = "tests/cache/test_region.py::CustomInvalidationStrategyTest"


def test_dogpile_cache(segment_name: str, tmp_path: Path) -> None:
    folder = fetch("dogpile.cache", "1.5.0")
    options = ["-o", "python_classes=*Test", "-p", "no:warnings"]
    done = run(folder, "dogpile_suite", [TESTS], tmp_path, *options, SEGMENT=segment_name)
    pynotify.unlink(segment_name, force=True, missing_ok=True)
    done.expect(passed=43)
