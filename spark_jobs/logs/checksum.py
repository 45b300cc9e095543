"""CRC-32C (Castagnoli) of bytes, and of many log records at once.

Records by the million are checked a run at a time, by one call of the library ``crc32c``, which
costs a twentieth of what each by itself does. A CRC is linear, so

* where a record ends with the CRC of what is before it (version 2), the CRC of a run of good ones
  depends on how many they are, and on nothing else;
* where its CRC was made with itself as 0 (version 1), each is moved to the next record, and added
  to its first bytes. It then begins like a run of its own, and the CRC of the run is that of the
  last one.

A run fails as a CRC of all of it would: whatever the CRC of one damaged record finds is found, and
so are equal errors in two records, because (1 + x**d) is no multiple of the polynomial's large
factor. Anything else passes once in 2**32 times. A run that fails is checked record by record, as
all are where there is no such library.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spark_jobs.logs.schema import RECORD_BYTES, VERSION

_library: Callable[[Any, int], int] | None
try:
    from crc32c import crc32c as _library
except ImportError:  # of an executor whose Python does not have it
    _library = None

_POLYNOMIAL = 0x82F63B78
_CRC_BYTES = 4
_LANES = RECORD_BYTES // 2
_WORDS = RECORD_BYTES // 4
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
    return _slowly(data, crc) if _library is None else _library(data, crc)


def _slowly(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    table = _byte_table().tolist()
    crc ^= 0xFFFFFFFF
    for byte in bytes(data):
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _covered(version: int) -> int:
    """Bytes that the CRC of a record covers; the last four of 64 are then 0."""
    return RECORD_BYTES - _CRC_BYTES if version > 1 else RECORD_BYTES


@cache
def _lane_tables(length: int) -> tuple[NDArray[np.uint32], ...]:
    """What each value of each 16-bit lane of a record contributes to its CRC.

    A CRC is linear: that of a record is the exclusive or of what its lanes contribute, and of a
    constant that comes from the start value.
    """
    table = _byte_table()
    after = [table]  # after[k]: a byte followed by k zero bytes
    for _ in range(length - 1):
        after.append((after[-1] >> 8) ^ table[after[-1] & 0xFF])
    lane = np.arange(65536)
    low, high = lane & 0xFF, lane >> 8
    return tuple(
        after[length - 1 - 2 * i][low] ^ after[length - 2 - 2 * i][high]
        for i in range(_LANES - _CRC_BYTES // 2)
    )


def record_crcs(records: NDArray[Any], version: int = VERSION) -> NDArray[np.uint32]:
    """The CRC that each record (a contiguous array of `schema.RECORD`) should carry."""
    lanes = records.view(np.uint16).reshape(-1, _LANES)
    length = _covered(version)
    result = np.full(len(records), crc32c(bytes(length)), dtype=np.uint32)
    tables = _lane_tables(length)
    for start in range(0, len(records), _BLOCK):
        block = np.ascontiguousarray(lanes[start : start + _BLOCK].T)
        out = result[start : start + _BLOCK]
        for table, column in zip(tables, block, strict=False):
            if (column == column[0]).all():  # half of the lanes are high bytes of small numbers
                out ^= table[column[0]]
            else:
                # A wider index first: indexing by 16 bits costs several times as much.
                out ^= table.take(column.astype(np.intp))
    return result


@cache
def _good_block() -> memoryview:
    words = np.zeros((_BLOCK, _WORDS), dtype=np.uint32)
    words[:, -1] = crc32c(bytes(_covered(2)))
    return words.view(np.uint8).reshape(-1).data


@lru_cache(maxsize=256)
def _good_run(count: int) -> int:
    """The CRC of so many good records of version 2."""
    return crc32c(_good_block()[: count * RECORD_BYTES])


def run_ok(records: NDArray[Any], version: int = VERSION) -> bool:
    """Whether all of these, a block at most, carry the CRC that they should, as a whole."""
    if version > 1:
        return crc32c(records.view(np.uint8).data) == _good_run(len(records))
    words = records.view(np.uint32).reshape(-1, _WORDS).copy()
    words[1:, 0] ^= words[:-1, -1]
    words[:, -1] = 0
    last = records.view(np.uint32).reshape(-1, _WORDS)[-1, -1]
    return crc32c(words.view(np.uint8).reshape(-1).data) == int(last)


def record_ok(records: NDArray[Any], version: int = VERSION) -> NDArray[np.bool_]:
    """Which of these records carry the CRC that they should."""
    result = np.ones(len(records), dtype=np.bool_)
    records = np.ascontiguousarray(records)
    for start in range(0, len(records), _BLOCK):
        block = records[start : start + _BLOCK]
        if _library is None or not run_ok(block, version):
            carried = (block["aux"] >> np.uint64(32)).astype(np.uint32)
            result[start : start + _BLOCK] = carried == record_crcs(block, version)
    return result
