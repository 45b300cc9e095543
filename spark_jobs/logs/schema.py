"""The one definition of a log record and its header, as numpy types.

``native/src/files/latency_log.h`` is the C side; ``tests/spark/test_schema.py`` compares the two.
Version 1 of the format is read as well: its records differ by what their CRC covers, its header
(`HEADER_1`) by words that are under no CRC.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, TypeAlias

import numpy as np

VERSION: Final = 2
VERSIONS: Final = (1, 2)
"""The versions that are read."""
MAGIC: Final = b"PYNLOG\x00\x02"
ENDIAN: Final = 0x01020304
HEADER_BYTES: Final = 4096
RECORD_BYTES: Final = 64
REVISION: Final = 3
"""What the writer of version 2 puts there; of version 1 it is `REVISION_1` at most."""
REVISION_1: Final = 2
"""Since 1 a header has `time_namespace`, counts with complements, and two words for its end."""
OPEN: Final = 0
CLOSED: Final = 1
ROTATED: Final = 2
END_SHIFT: Final = 30
"""How a file ended stands above this bit of `state`, how many records it has below."""
COUNT: Final = (1 << END_SHIFT) - 1
ENDS_1: Final = {OPEN: 0, CLOSED: 0x5CA1AB1E, ROTATED: 0xA35E54E1}
"""What `sealed` is in version 1."""
WRITING: Final = 0x77726974
"""The CRC of an anchor that is being written."""
INITIAL_TIME_NAMESPACE: Final = 0xEFFFFFFA
"""A host's; a header without a namespace is taken to be of it."""
NAME_PIECE: Final = 32
"""Bytes of a channel's name in one CHANDEF record: its first ones."""
APPENDED_MOST: Final = 129
"""Records of one append: a channel's longest name, in pieces, and the record."""
SEQUENCE_BITS: Final = 40
"""A chan_seq beyond this is taken for damage, as is such a count of records in a header."""

USEFUL: Final = 1
"""Bit of ``flags`` in a WAKE record: something was found."""
UNNUMBERED: Final = 2
"""Bit of ``flags`` of a SEND or RECV: a pattern heard it, and ``chan_seq`` says nothing."""


class Kind(IntEnum):
    """What a record tells."""

    SEND = 1
    RECV = 2
    FIN = 3
    REQ = 4
    TIMEOUT = 5
    SIGNAL = 6
    WAKE = 7
    LISTEN = 8
    UNLISTEN = 9
    DROP = 10
    CHANDEF = 11
    PUBLISH = 12
    DELIVER = 13


class Wake(IntEnum):
    """What ended the sleep before a RECV or WAKE record."""

    NONE = 0
    SIGNAL = 1
    FD = 2
    TIMER = 3
    NEIGHBOUR = 4


WAKE_NAMES: Final = (*(wake.name.lower() for wake in Wake), "other", "other", "other")
"""Eight names: a value above seven counts as the last."""

RECORD: Final = np.dtype(
    [
        ("ts", "<u8"),
        ("ref_ts", "<u8"),
        ("commit_seq", "<u8"),
        ("chan_seq", "<u8"),
        ("channel", "<u4"),
        ("bytes", "<u4"),
        ("peer", "<u4"),
        ("lag", "<u4"),
        ("kind", "|u1"),
        ("wake", "|u1"),
        ("attempts", "|u1"),
        ("flags", "|u1"),
        ("batch", "<u4"),
        ("aux", "<u8"),
    ]
)
FIELD_NAMES: Final = tuple(RECORD.names or ())

_CLOCKS: Final = [("tsc", "<u8"), ("monotonic_ns", "<u8"), ("realtime_ns", "<u8")]
ANCHOR: Final = np.dtype([*_CLOCKS, ("number", "<u4"), ("crc", "<u4")])
ANCHOR_1: Final = np.dtype([*_CLOCKS, ("crc", "<u4"), ("number", "<u4")])

_Fields: TypeAlias = tuple[tuple[str, object, int], ...]
_FIXED: Final[_Fields] = (
    ("magic", "S8", 0),
    ("endian", "<u4", 8),
    ("header_len", "<u4", 12),
    ("record_len", "<u4", 16),
    ("schema_id", "<u4", 20),
    ("schema_off", "<u4", 24),
    ("schema_len", "<u4", 28),
    ("log_id", "<u8", 32),
    ("capacity", "<u8", 40),
    ("starttime", "<u8", 48),
    ("pid", "<i4", 56),
    ("backend_id", "<i4", 60),
    ("segno", "<u4", 64),
    ("part", "<u4", 68),
    ("host", "S64", 72),
    ("boot_id", "S40", 136),
    ("machine_id", "S40", 176),
    ("segment", "S160", 216),
    ("revision", "<u4", 376),
    ("time_namespace", "<u8", 384),
    ("header_crc", "<u4", 508),
)


def _header(*rest: tuple[str, object, int]) -> np.dtype[np.void]:
    names, formats, offsets = zip(*_FIXED, *rest, ("schema", "S2944", 1152), strict=True)
    fields = {"names": names, "formats": formats, "offsets": offsets, "itemsize": HEADER_BYTES}
    return np.dtype(fields)  # type: ignore[call-overload, no-any-return]


HEADER: Final = _header(
    ("anchors", (ANCHOR, 16), 512),
    ("state", "<u8", 1024),
    ("dropped", "<u8", 1032),
    ("zeros", "V112", 1040),
)
HEADER_1: Final = _header(
    ("anchors", (ANCHOR_1, 16), 512),
    ("committed", "<u8", 1024),
    ("dropped", "<u8", 1032),
    ("sealed", "<u4", 1040),
    ("committed_not", "<u8", 1048),
    ("dropped_not", "<u8", 1056),
)
HEADER_CRC_BYTES: Final = 508

assert RECORD.itemsize == RECORD_BYTES
