"""Calls for which CPython has no memory at one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

_testcapi = pytest.importorskip("_testcapi")


def without_memory_at(place: int, call: Callable[[], Any]) -> tuple[Any, bool]:
    """What the call returns when Python's allocation number `place` fails; whether it raised."""
    _testcapi.set_nomemory(place, place + 1)
    try:
        result = call()
    except MemoryError:
        return None, True
    finally:
        _testcapi.remove_mem_hooks()
    return result, False
