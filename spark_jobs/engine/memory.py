"""How this process gets its memory."""

from __future__ import annotations

import ctypes
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_THRESHOLDS: Final = {_MMAP_THRESHOLD: 32 << 20, _TRIM_THRESHOLD: 512 << 20}
"""Bytes; glibc takes no more for the first."""


def keep_what_is_freed() -> None:
    """Memory that was freed stays with this process, and those that it forks, for what comes next.

    Columns are freed again and again, and go back to the kernel each time: a quarter of what
    `timeline` takes was page faults. It is for a process of our own, not for a program that calls a
    job. Where there is no glibc nothing is changed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for threshold, most in _THRESHOLDS.items():
            mallopt(threshold, most)
