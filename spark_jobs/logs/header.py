"""What a log file's header says, and how far it can be believed.

Version 2: all of it is under CRCs. A flipped bit of a word that changes while the log is written is
told, and put right: the words differ by eight bits and more. Version 1: the counts have complements
beside them (since its revision 1), and the records tell which of the two is right.
"""

from __future__ import annotations

from typing import IO, Any, Final, NamedTuple

import numpy as np

from spark_jobs.logs.checksum import crc32c, record_ok
from spark_jobs.logs.schema import (
    APPENDED_MOST,
    CLOSED,
    COUNT,
    END_SHIFT,
    ENDIAN,
    ENDS_1,
    HEADER,
    HEADER_1,
    HEADER_BYTES,
    HEADER_CRC_BYTES,
    MAGIC,
    OPEN,
    RECORD,
    RECORD_BYTES,
    SEQUENCE_BITS,
    VERSIONS,
    WRITING,
)

_ALL: Final = (1 << 64) - 1
_LOW: Final = (1 << 32) - 1
_LOOKS: Final = 3
_BLOCK: Final = 16384
_SCHEMA_BYTES: Final = HEADER.fields["schema"][0].itemsize  # type: ignore[index]
_FORMATS: Final = " and ".join(map(str, VERSIONS))


class State(NamedTuple):
    """What changes while a log is written. `fit`: for how many records there is room in the file.

    `clock_ns`: realtime less monotonic at the newest anchor; 0 without any.
    """

    committed: int
    dropped: int
    end: int
    clock_ns: int
    fit: int
    doubts: list[str]


def version_of(raw: bytes) -> int:
    """The version of the format of a file that begins with `raw`."""
    return raw[len(MAGIC) - 1]


def fixed_words(raw: bytes) -> Any:
    """The header's words; those that change may mean something else, by the version."""
    return np.frombuffer(raw, dtype=HEADER, count=1)[0]


def header_problem(raw: bytes) -> str | None:
    """Why these first bytes of a file are no usable header; None when they are one."""
    problem = None
    version = raw[len(MAGIC) - 1] if len(raw) >= len(MAGIC) else None
    known = version is None or version in VERSIONS
    if len(raw) == 0:
        problem = "empty file"
    elif not MAGIC[:-1].startswith(raw[: len(MAGIC) - 1]):
        problem = "wrong magic: not a pynlog file, or one whose header was overwritten"
    elif not known and not any(_is_sound(_as_version(raw, each)) for each in VERSIONS):
        problem = (
            f"version {version} of the format, and these jobs know {_FORMATS}: "
            f"a newer pynotify wrote it; upgrade pynotify where the jobs run"
        )
    elif len(raw) < HEADER_BYTES:
        problem = f"header cut off after {len(raw)} of {HEADER_BYTES} bytes"
    elif not known:
        problem = f"header CRC does not match: it is of another version than {version}"
    elif not _is_sound(raw):
        problem = "header CRC does not match"
    else:
        problem = _unknown(raw)
    return problem


def _as_version(raw: bytes, version: int) -> bytes:
    return raw[: len(MAGIC) - 1] + bytes([version]) + raw[len(MAGIC) :]


def _is_sound(raw: bytes) -> bool:
    if len(raw) < HEADER_BYTES:
        return False
    return crc32c(raw[:HEADER_CRC_BYTES]) == int(fixed_words(raw)["header_crc"])


def _unknown(raw: bytes) -> str | None:
    header = fixed_words(raw)
    offset, length = int(header["schema_off"]), int(header["schema_len"])
    if version_of(raw) > 1:
        length = _SCHEMA_BYTES
    if header["endian"] != ENDIAN:
        return "written on a machine of another byte order"
    if header["header_len"] != HEADER_BYTES or header["record_len"] != RECORD_BYTES:
        return "unknown header or record length"
    if crc32c(raw[offset : offset + length]) != header["schema_id"]:
        return "schema text does not match its CRC"
    return None


def read_state(file: IO[bytes], raw: bytes, fit: int) -> State:
    """The state of a file whose header, `raw`, has no problem."""
    state = _state_1 if version_of(raw) == 1 else _state_2
    for _ in range(_LOOKS):
        found = state(file, raw, fit)
        if not found.doubts:
            break
        file.seek(0)  # a writer that lives may have stored as the header was read
        raw = file.read(HEADER_BYTES)
    return found


# ---- version 2


def _state_2(file: IO[bytes], raw: bytes, fit: int) -> State:
    header = np.frombuffer(raw, dtype=HEADER, count=1)[0]
    crc = int(header["header_crc"])
    doubts: list[str] = []
    state, sound = _number(int(header["state"]), crc)
    if not sound:
        doubts.append("the header's count of records is damaged")
    if state is None:  # then one more than there are is claimed: what is not there proves nothing
        committed, end = _whole_records(file, fit) + 1, OPEN
    else:
        committed, end = state & COUNT, state >> END_SHIFT
    dropped, sound = _number(int(header["dropped"]), crc ^ _LOW)
    if not sound:
        doubts.append("the header's count of dropped records is damaged")
    anchors = [anchor for anchor in header["anchors"] if anchor.tobytes().strip(b"\0")]
    whole = [anchor for anchor in anchors if crc32c(anchor.tobytes()[:-4]) == anchor["crc"]]
    if len(whole) < sum(anchor["crc"] != WRITING for anchor in anchors):
        doubts.append("an anchor of the clocks in the header is damaged")
    if header["zeros"].tobytes().strip(b"\0"):
        doubts.append("unused bytes of the header are damaged")
    return State(committed, 1 if dropped is None else dropped, end, _offset(whole), fit, doubts)


def guarded(low: int, crc: int) -> int:
    """A word of a header: a number, and its CRC, which continues another one."""
    return low | crc32c(low.to_bytes(4, "little"), crc) << 32


def counted(raw: bytes) -> int:
    """How many records a sound header of version 2 counts."""
    return int(fixed_words(raw)["state"]) & COUNT


def with_count(raw: bytes, count: int) -> bytes:
    """The same header with another count of records."""
    header = fixed_words(raw)
    end = int(header["state"]) & _LOW & ~COUNT
    word = guarded(count | end, int(header["header_crc"]))
    at = HEADER.fields["state"][1]  # type: ignore[index]
    return raw[:at] + word.to_bytes(8, "little") + raw[at + 8 :]


def _number(word: int, crc: int) -> tuple[int | None, bool]:
    """What such a word of a header says, and whether it is sound; None: more than a bit is not."""
    if _matches(word, crc):
        return word & _LOW, True
    near = (word ^ 1 << bit for bit in range(64))
    return next((other & _LOW for other in near if _matches(other, crc)), None), False


def _matches(word: int, crc: int) -> bool:
    return guarded(word & _LOW, crc) == word


def _whole_records(file: IO[bytes], fit: int) -> int:
    """How many records there are up to the last that is whole."""
    last = 0
    file.seek(HEADER_BYTES)
    for start in range(0, fit, _BLOCK):
        block = file.read(min(_BLOCK, fit - start) * RECORD_BYTES)
        records = np.frombuffer(block[: len(block) // RECORD_BYTES * RECORD_BYTES], dtype=RECORD)
        good = np.flatnonzero(record_ok(records))
        last = start + int(good[-1]) + 1 if len(good) else last
    return last


def _offset(anchors: list[Any]) -> int:
    """The offset that the newest anchor gives."""
    newest = max(anchors, key=lambda anchor: int(anchor["number"]), default=None)
    return 0 if newest is None else int(newest["realtime_ns"]) - int(newest["monotonic_ns"])


# ---- version 1


def _state_1(file: IO[bytes], raw: bytes, fit: int) -> State:
    header = np.frombuffer(raw, dtype=HEADER_1, count=1)[0]
    doubts: list[str] = []
    word, dropped = int(header["sealed"]), int(header["dropped"])
    committed = int(header["committed"])
    if header["revision"] >= 1:
        end = min(ENDS_1, key=lambda each: (word ^ ENDS_1[each]).bit_count())
        if ENDS_1[end] != word:
            doubts.append("the header's word about the end of the file is damaged")
        dropped = _larger(dropped, int(header["dropped_not"]), doubts)
        committed = _sensible(file, header, fit, doubts)
    else:
        end = CLOSED if word else OPEN
    committed = _count(file, committed, fit, end != OPEN, doubts)
    whole = [
        anchor
        for anchor in header["anchors"]
        if crc32c(anchor.tobytes()[: anchor.dtype.fields["crc"][1]]) == anchor["crc"]
    ]  # one that is not was being written
    return State(committed, dropped, end, _offset(whole), fit, doubts)


def _larger(dropped: int, inverse: int, doubts: list[str]) -> int:
    """The larger of two counts of dropped records: what is missing must not look like a loss."""
    other = inverse ^ _ALL
    if dropped - other not in (0, 1):  # 1: killed between the two
        doubts.append("the header's count of dropped records is damaged")
    return max(1, dropped, other) if dropped != other else dropped


def _sensible(file: IO[bytes], header: Any, fit: int, doubts: list[str]) -> int:
    """Which of two counts of records the records speak for.

    A death between the two leaves the complement one append behind, and a writer that lives may
    append while both are read: the records are whole. A bit that was flipped makes one of the
    counts smaller, and whole records are behind it, or larger, and there are none.
    """
    committed, other = int(header["committed"]), int(header["committed_not"]) ^ _ALL
    low, high = sorted((committed, other))
    if low == high:
        return committed
    whole = low < fit and _is_whole(file, low)
    between = header["sealed"] == OPEN and high - low <= APPENDED_MOST
    if not (whole and between):
        doubts.append(f"the header's count of records is damaged: {committed}, or {other}")
    return high if whole and high <= fit else low


def _is_whole(file: IO[bytes], number: int) -> bool:
    file.seek(HEADER_BYTES + number * RECORD_BYTES)
    record = np.frombuffer(file.read(RECORD_BYTES), dtype=RECORD)
    return bool(record["kind"].any() and record_ok(record, 1).all())


def _count(file: IO[bytes], committed: int, fit: int, sealed: bool, doubts: list[str]) -> int:
    """Records that the header claims.

    A sealed file ends with its records, or with zeros where it could not be cut, so a whole record
    behind the last one says that the count is damaged. No file has as many records as
    `SEQUENCE_BITS` can count.
    """
    doubtful = committed >> SEQUENCE_BITS != 0
    if doubtful or (sealed and committed < fit and _is_whole(file, committed)):
        doubts.append(f"the header's count of records, {committed}, is damaged: {fit} are there")
        return fit
    return committed
