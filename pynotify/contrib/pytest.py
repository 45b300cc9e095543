"""A plugin of pytest, which is there as soon as the package is installed.

```
def test_orders(pynotify_segment):
    with pynotify.connect(pynotify_segment) as conn:
        conn.listen("orders")
        ...
```

`pynotify_segment` is the name of a segment that no other test has, of this run or of another one
beside it.  After the test, failed or not, the segment is removed.  The test has an error if it left
something: a connection that is still open, in whichever process, or a segment that is not sound.

The marker `pynotify` has options of the segment, which then is made before the test:
`@pytest.mark.pynotify(queue_pages=64, on_full="block")`.
"""

from __future__ import annotations

import gc
import itertools
import os
import secrets
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["pynotify_segment"]

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Tell pytest of the marker `pynotify`."""
    config.addinivalue_line(
        "markers", "pynotify(**options): the segment of `pynotify_segment` is made with these"
    )


def _make(name: str, marker: pytest.Mark) -> None:
    import pynotify  # noqa: PLC0415

    if marker.args:
        raise pytest.UsageError("the marker `pynotify` takes options of a segment by name only")
    pynotify.open(name, **marker.kwargs).close()


def _problems(name: str) -> list[str]:
    """What the test has left, which is removed."""
    import pynotify  # noqa: PLC0415
    from pynotify._connect import close_shared  # noqa: PLC0415

    close_shared(name)
    gc.collect()  # a connection that nothing refers to is closed by then
    found: list[str] = []
    try:
        with pynotify.open(name, create=False) as segment:
            found += segment.check().problems
    except pynotify.SegmentNotFound:
        return found
    except pynotify.Error as error:
        found.append(str(error))
    try:
        pynotify.unlink(name, missing_ok=True)
    except pynotify.Error as error:
        found.append(str(error))
        pynotify.unlink(name, missing_ok=True, force=True)
    return found


@pytest.fixture
def pynotify_segment(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a segment of this test alone, which leaves no connection open and is removed."""
    name = f"pytest-{os.getpid()}-{next(_numbers)}-{secrets.token_hex(4)}"
    marker = request.node.get_closest_marker("pynotify")
    if marker is not None:
        _make(name, marker)
    yield name
    found = _problems(name)
    if found:
        pytest.fail("\n".join([f'the test has left in the segment "{name}":', *found]), False)
