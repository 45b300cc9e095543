"""Arrays for tests, and what of them is in /dev/shm."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from pynotify._array_files import array_files

COUNT = 1 << 17
"""Numbers of a frame: 1 MiB of them."""

BLOCK = (1 << 20) + (1 << 17)
"""Bytes of the block that a frame takes."""

Array = npt.NDArray[Any]


def frame(number: int, count: int = COUNT) -> Array:
    return np.full(count, number, np.int64)


def number_of(array: Any) -> int:
    """Of a frame, all of whose numbers must be the same."""
    assert isinstance(array, np.ndarray), array
    first = int(array[0])
    assert (array == first).all(), "two arrays in one"
    return first


def blocks(segment: str) -> list[str]:
    """The files of blocks that there are."""
    return [name for name in array_files(segment) if re.search(r"\.[0-9a-f]{8}\.\d+$", name)]


def in_queue(array: Array) -> bool:
    """Whether it came through the queue, and not in a block."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, bytes)
