"""CRC-32C (Castagnoli) of bytes, and of many log records at once.

Records by the million are checked a block at a time, which costs a quarter of what each by itself
does. Let s(i) be what the CRC of record i is off by, as a polynomial modulo that of the CRC; s is
0 for a good record and linear in its bits. `digest` is the sum of s(i) * x**e(i) plus a constant,
with another e for each record of the block: it is cut into groups, these into slices, which are
added some words, bytes and bits further on, and the sum is evaluated. So it fails as a CRC of the
whole block would. Whatever one record's CRC would find is found; so are equal errors in any two
records, and in any number of them at regular distances, because (1 + x**d) is never a multiple of
the polynomial's large factor. Anything else passes once in 2**32 times. A block that fails is
checked record by record.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spark_jobs.logs.schema import RECORD, RECORD_BYTES

_POLYNOMIAL = 0x82F63B78
_LANES = RECORD_BYTES // 2
_CRC_LANES = (30, 31)
_BLOCK = 16384
"""Records at a time: their columns and the tables then stay in the second-level cache."""
_FEW = _BLOCK // 4
"""Fewer are checked sooner by themselves than in a block that is filled up."""
_WORDS = RECORD_BYTES // 4
_SLICES = _WORDS
"""Of a group: more would be added at distances at which records already stand."""
_GROUPS = 8
"""Of a block: four by bytes, in two halves by four bits."""
_SLICE_WORDS = _BLOCK // _GROUPS // _SLICES * _WORDS
_SLICE_BYTES = 4 * _SLICE_WORDS
_ROW_WORDS = _SLICE_WORDS + _WORDS + 2
"""A slice, the furthest shift with the CRCs' own, and zeros for the shift of the group."""


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


def _fold(block: NDArray[Any]) -> NDArray[np.uint64]:
    """The block's records, each with x**32 + 1 times its CRC field added, on top of each other.

    Slice m of a group comes m words further on, in one call: as a row of a view that begins m words
    early. The m words that this takes from the end of the slice before are taken out again, and the
    last m words follow by themselves.
    """
    words = block.view(np.uint32)
    folded = np.zeros((_GROUPS, _ROW_WORDS), dtype=np.uint32)
    steps = (_SLICES * _SLICE_BYTES, _SLICE_BYTES - 4, 4)
    rows = np.ndarray((_GROUPS, _SLICES, _SLICE_WORDS), np.uint32, words, 0, steps)
    np.bitwise_xor.reduce(rows, axis=1, out=folded[:, :_SLICE_WORDS])

    last = np.zeros((_GROUPS, _SLICES, 2 * _WORDS), dtype=np.uint32)  # a record, and as many zeros
    last[..., :_WORDS] = words.reshape(_GROUPS, _SLICES, -1)[..., -_WORDS:]
    steps = (_SLICES * 2 * _WORDS * 4, (2 * _WORDS - 1) * 4, 4)
    for start, before in ((0, 1), (_SLICE_WORDS, 0)):
        shape = (_GROUPS, _SLICES - before, _WORDS)
        ends = np.ndarray(shape, np.uint32, last, (_WORDS - before) * 4, steps)
        folded[:, start : start + _WORDS] ^= np.bitwise_xor.reduce(ends, axis=1)

    # Slices have as many words of shift as a record has words: the CRC fields lie side by side.
    carried = words.reshape(_GROUPS, _SLICES, -1, _WORDS)[..., -1].transpose(0, 2, 1)
    carried = np.ascontiguousarray(carried).reshape(_GROUPS, _SLICE_WORDS)
    for start in (_WORDS - 1, _WORDS):
        folded[:, start : start + _SLICE_WORDS] ^= carried

    # Groups by bytes; rows end in zeros, so that nothing has to be taken out.
    steps = (4 * _ROW_WORDS * 4, _ROW_WORDS * 4 - 1, 1)
    rows = np.ndarray((_GROUPS // 4, 4, _ROW_WORDS * 4), np.uint8, folded, 0, steps)
    first, second = np.bitwise_xor.reduce(rows, axis=1).view(np.uint64)
    first ^= second << np.uint64(4)
    first[1:] ^= second[:-1] >> np.uint64(60)
    return np.asarray(first)


@cache
def _bit_masks() -> NDArray[np.uint64]:
    """For each bit of a remainder, which bits of a folded block it is the parity of."""
    powers = np.empty(32 * _ROW_WORDS, dtype=np.uint32)
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
def _good_block() -> NDArray[Any]:
    words = np.zeros((_BLOCK, _WORDS), dtype=np.uint32)
    words[:, -1] = _constant()
    return words.view(RECORD).reshape(-1)


@cache
def _good_digest() -> bytes:
    return digest(_good_block())


def _is_good(records: NDArray[Any]) -> bool:
    """Whether the digest says that all are; False also if they are too many or too few for it."""
    if _FEW <= len(records) < _BLOCK:
        block = _good_block().copy()
        block[: len(records)] = records
        records = block
    return len(records) == _BLOCK and digest(records) == _good_digest()


def record_ok(records: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of these records (at most `_BLOCK` are quickest) carry the CRC that they should."""
    if _is_good(records):
        return np.ones(len(records), dtype=np.bool_)
    carried = (records["aux"] >> np.uint64(32)).astype(np.uint32)
    good: NDArray[np.bool_] = carried == record_crcs(records)
    return good
