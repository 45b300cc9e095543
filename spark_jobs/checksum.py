"""CRC-32C (Castagnoli) of bytes, and of many log records at once."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spark_jobs.schema import RECORD_BYTES

_POLYNOMIAL = 0x82F63B78
_LANES = RECORD_BYTES // 2
_CRC_LANES = (30, 31)
_BLOCK = 16384
"""Records at a time: their columns and the tables then stay in the second-level cache."""


@cache
def _byte_table() -> NDArray[np.uint32]:
    table: NDArray[np.uint32] = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.bitwise_xor(table >> 1, (table & 1) * np.uint32(_POLYNOMIAL))
    return table


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """CRC-32C of `data`, continuing from `crc`."""
    table = _byte_table().tolist()
    crc ^= 0xFFFFFFFF
    for byte in bytes(data):
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


@cache
def _lane_tables() -> tuple[NDArray[np.uint32], ...]:
    """What each value of each 16-bit lane of a record contributes to its CRC.

    A CRC is linear: that of a record is the exclusive or of what its lanes contribute, and of a
    constant that comes from the start value.
    """
    table = _byte_table()
    after = [table]  # after[k]: a byte followed by k zero bytes
    for _ in range(RECORD_BYTES - 1):
        after.append((after[-1] >> 8) ^ table[after[-1] & 0xFF])
    lane = np.arange(65536)
    low, high = lane & 0xFF, lane >> 8
    return tuple(
        after[RECORD_BYTES - 1 - 2 * i][low] ^ after[RECORD_BYTES - 2 - 2 * i][high]
        for i in range(_LANES)
    )


@cache
def _constant() -> int:
    return crc32c(bytes(RECORD_BYTES))


def record_crcs(records: NDArray[Any]) -> NDArray[np.uint32]:
    """The CRC that each record (a contiguous array of `schema.RECORD`) should carry."""
    lanes = records.view(np.uint16).reshape(-1, _LANES)
    result = np.full(len(records), _constant(), dtype=np.uint32)
    tables = _lane_tables()
    for start in range(0, len(records), _BLOCK):
        block = np.ascontiguousarray(lanes[start : start + _BLOCK].T)
        out = result[start : start + _BLOCK]
        for i, column in enumerate(block):
            if i in _CRC_LANES:
                continue
            if (column == column[0]).all():  # half of the lanes are high bytes of small numbers
                out ^= tables[i][column[0]]
            else:
                # A wider index first: indexing by 16 bits costs several times as much.
                out ^= tables[i].take(column.astype(np.intp))
    return result


def record_ok(records: NDArray[Any]) -> NDArray[np.bool_]:
    """Which records carry the CRC that they should."""
    carried = (records["aux"] >> np.uint64(32)).astype(np.uint32)
    good: NDArray[np.bool_] = carried == record_crcs(records)
    return good
