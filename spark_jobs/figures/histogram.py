"""Log-linear histograms: 128 buckets per octave, so every value is known within 0.4 %.

Sketches bound the error of a rank; a heavy tail makes that useless at p99.9. These bound the error
of the value at every quantile, count exactly, and add up over channels, processes, hosts and days.
A quantile is the nearest rank: the smallest value that at least ``q * n`` values do not exceed.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

SUB_BITS: Final = 7
"""128 buckets per octave."""
BUCKETS: Final = 63 << SUB_BITS
"""Every positive 64-bit value has one."""

QUANTILES: Final = {
    "p50_ns": 5000,
    "p90_ns": 9000,
    "p99_ns": 9900,
    "p999_ns": 9990,
    "p9999_ns": 9999,
}
"""Name of the quantile -> in ten thousandths: ranks are computed in whole numbers."""
SCALE: Final = 10000


def bucket(values: ArrayLike) -> NDArray[np.int64]:
    """Bucket of each value, in ns; what is below 1 counts as 1."""
    bits = np.maximum(np.asarray(values), 1).astype(np.float64).view(np.int64)
    return np.asarray((bits >> (52 - SUB_BITS)) - (1023 << SUB_BITS))


def _lower(buckets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Smallest whole number in each bucket, or in the next that has one."""
    octave, sub = buckets >> SUB_BITS, buckets & ((1 << SUB_BITS) - 1)
    return np.asarray(np.ceil(np.ldexp(1.0 + sub / (1 << SUB_BITS), octave)).astype(np.int64))


def midpoint(buckets: ArrayLike) -> NDArray[np.int64]:
    """The value that stands for each bucket, in ns; exact below 256."""
    index = np.asarray(buckets, dtype=np.int64)
    low = _lower(index)
    high = np.maximum(_lower(np.minimum(index + 1, BUCKETS - 1)) - 1, low)
    return np.asarray(low + (high - low) // 2)


def nearest_rank(count: int, ten_thousandths: int) -> int:
    """Rank, from 1, of that quantile among `count` values."""
    return max(1, -(-count * ten_thousandths // SCALE))


def quantile(counts: NDArray[Any], ten_thousandths: int) -> int:
    """Quantile in ns of a dense histogram (`counts` by bucket).

    Raises ValueError when it is empty.
    """
    cumulative = np.cumsum(counts)
    if len(cumulative) == 0 or cumulative[-1] == 0:
        raise ValueError("an empty histogram has no quantiles")
    rank = nearest_rank(int(cumulative[-1]), ten_thousandths)
    return int(midpoint(np.searchsorted(cumulative, rank)))
