"""Timeouts in seconds, as the core wants them, and the kernel."""

from __future__ import annotations

import math


def nanoseconds(timeout: float | None) -> int:
    """The `timeout_ns` of pn_wait(): -1 for None, which waits without a limit."""
    if timeout is None:
        return -1
    if math.isnan(timeout):
        raise ValueError("timeout must be a number of seconds, not NaN")
    # A bound below 2**63 ns: three decades, after which wait() says False.
    return int(min(max(timeout, 0.0), 1e9) * 1_000_000_000)


def milliseconds(timeout: float | None) -> int | None:
    """The timeout of poll(2), which counts in an int: it may be over sooner, after a week.

    Rounded up, or the last millisecond would be waited for with the processor.
    """
    return None if timeout is None else math.ceil(min(max(timeout, 0.0), 604_800.0) * 1000)
