"""CRC-32C (Castagnoli) of bytes, and of many log records at once.

Records by the million are checked a block at a time, which costs a quarter of what each by itself
does. Let s(i) be what the CRC of record i is off by, as a polynomial modulo that of the CRC; s is
0 for a good record and linear in its bits. `digest` is the sum of s(i) * x**e(i) plus a constant,
with another e for each record of the block: slice m of the block is added m bytes further on, and
the sum evaluated. So it fails as a CRC of the whole block would. Whatever one record's CRC would
find is found; so are equal errors in any two records, and in any number of them at regular
distances, because (1 + x**d) is never a multiple of the polynomial's large factor. Anything else
passes once in 2**32 times. A block that fails is checked record by record.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from spark_jobs.schema import RECORD_BYTES

_POLYNOMIAL = 0x82F63B78
_LANES = RECORD_BYTES // 2
_CRC_LANES = (30, 31)
_BLOCK = 16384
"""Records at a time: their columns and the tables then stay in the second-level cache."""
_SLICES = RECORD_BYTES
"""Of a block: more would be added at distances at which records already stand."""
_SLICE_BYTES = _BLOCK // _SLICES * RECORD_BYTES
_FOLDED_BYTES = _SLICE_BYTES + _SLICES + 8
"""Of a slice, the furthest shift, and the CRCs' own shift; whole words."""


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


@cache
def _later() -> NDArray[np.uint8]:
    """[slice, shift]: all bits where the slice is added further on than by `shift` bytes."""
    number = np.arange(_SLICES)
    later: NDArray[np.uint8] = np.uint8(0xFF) * (number[:, None] > number[None, :-1])
    return later


def _fold(block: NDArray[Any]) -> NDArray[np.uint64]:
    """The block's records, each with x**32 + 1 times its CRC field added, on top of each other.

    Slice m is added m bytes further on, in one call: a row of a view that begins m bytes early.
    What that takes from the end of the slice before is taken out again, and the last m bytes
    follow by themselves.
    """
    raw = block.view(np.uint8).reshape(-1)
    folded = np.zeros(_FOLDED_BYTES, dtype=np.uint8)
    shifted = (_SLICE_BYTES - 1, 1)
    np.bitwise_xor.reduce(
        as_strided(raw, (_SLICES, _SLICE_BYTES), shifted), axis=0, out=folded[:_SLICE_BYTES]
    )
    for start, there in ((0, raw), (_SLICE_BYTES, raw[_SLICE_BYTES:])):
        edge = as_strided(there, (_SLICES, _SLICES - 1), shifted) & _later()
        folded[start : start + _SLICES - 1] ^= np.bitwise_xor.reduce(edge, axis=0)
    # Bytes of CRC fields in the order in which they came to lie: place, then slice.
    words = block.view(np.uint32).reshape(-1, RECORD_BYTES // 4)
    carried = np.ascontiguousarray(words[:, -1]).reshape(_SLICES, -1).T.ravel()
    for byte in range(4):
        piece = (carried >> np.uint32(8 * byte)).astype(np.uint8)
        for start in (RECORD_BYTES - 4 + byte, RECORD_BYTES + byte):
            into = folded[start : start + len(piece)]
            np.bitwise_xor(into, piece, out=into)
    return folded.view(np.uint64)


@cache
def _bit_masks() -> NDArray[np.uint64]:
    """For each bit of a remainder, which bits of a folded block it is the parity of."""
    powers = np.empty(8 * _FOLDED_BYTES, dtype=np.uint32)
    power = _POLYNOMIAL
    for i in range(len(powers) - 1, -1, -1):
        powers[i] = power
        power = (power >> 1) ^ (_POLYNOMIAL if power & 1 else 0)
    rows = [np.packbits((powers >> bit) & 1, bitorder="little") for bit in range(32)]
    return np.stack(rows).view(np.uint64)


def digest(block: NDArray[Any]) -> bytes:
    """What is the same for every block of good records."""
    remainder = np.bitwise_xor.reduce(_bit_masks() & _fold(block), axis=1)
    parity = np.bitwise_count(remainder) & np.uint8(1)
    return np.packbits(parity).tobytes()


@cache
def _good_digest() -> bytes:
    block = np.zeros((_BLOCK, RECORD_BYTES // 4), dtype=np.uint32)
    block[:, -1] = _constant()
    return digest(block)


def record_ok(records: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of these records (at most `_BLOCK` are quickest) carry the CRC that they should."""
    if len(records) == _BLOCK and digest(records) == _good_digest():
        return np.ones(len(records), dtype=np.bool_)
    carried = (records["aux"] >> np.uint64(32)).astype(np.uint32)
    good: NDArray[np.bool_] = carried == record_crcs(records)
    return good
