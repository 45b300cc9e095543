"""The one definition of a log record and its header, as numpy types.

``native/src/files/latency_log.h`` is the C side; ``tests/spark/test_schema.py`` compares the two.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np

MAGIC: Final = b"PYNLOG\x00\x01"
ENDIAN: Final = 0x01020304
HEADER_BYTES: Final = 4096
RECORD_BYTES: Final = 64
REVISION: Final = 1
"""Since it a header has `time_namespace`, guarded counts, and two words for its end."""
OPEN: Final = 0
CLOSED: Final = 0x5CA1AB1E
ROTATED: Final = 0xA35E54E1
INITIAL_TIME_NAMESPACE: Final = 0xEFFFFFFA
"""Of a host; what a header without one is taken to be of."""
NAME_PIECE: Final = 32
"""Bytes of a channel's name in one CHANDEF record: its first ones."""

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

ANCHOR_CRC_BYTES: Final = 24
ANCHOR: Final = np.dtype(
    [
        ("tsc", "<u8"),
        ("monotonic_ns", "<u8"),
        ("realtime_ns", "<u8"),
        ("crc", "<u4"),
        ("number", "<u4"),
    ]
)

_HEADER_FIELDS: Final[tuple[tuple[str, object, int], ...]] = (
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
    ("anchors", (ANCHOR, 16), 512),
    ("committed", "<u8", 1024),
    ("dropped", "<u8", 1032),
    ("sealed", "<u4", 1040),
    ("committed_not", "<u8", 1048),
    ("dropped_not", "<u8", 1056),
    ("schema", "S2944", 1152),
)
HEADER: Final = np.dtype(
    {
        "names": [name for name, _, _ in _HEADER_FIELDS],
        "formats": [code for _, code, _ in _HEADER_FIELDS],
        "offsets": [offset for _, _, offset in _HEADER_FIELDS],
        "itemsize": HEADER_BYTES,
    }
)
HEADER_CRC_BYTES: Final = 508

assert RECORD.itemsize == RECORD_BYTES
