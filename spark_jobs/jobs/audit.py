"""Was every message that was owed handed over: once, in order, unchanged?

1. ``chan_seq`` is dense per (database, channel). A listener (one log) owes every number of a
   channel from the ``chan_seq`` of its LISTEN record on.
2. The debt ends with the last message handed over if it unlistened, closed or died. An UNLISTEN
   record proves more: everything below ``chan_seq - lag`` was owed.
3. It runs to the channel's last SEND only for a listener alive and reading at the end: its process
   runs, its log is open, and it received something of a later commit (order is commit order), or
   woke after that SEND, by the same clock, and found nothing.
4. *lost*: owed, not handed over. *dup*: handed over again. *out_of_order*: for the first time, but
   after a higher number. *corrupted*: its bytes are not those of the SEND with the same number.
   *unproven*: no SEND was logged with that number, so the bytes cannot be compared.
5. What a Gap announced (DROP record) is not lost but ``dropped``.
6. A listener whose log is incomplete proves no loss: ``lost`` is null and what is missing counts
   as unproven. Its other figures stand, but are no violation.
7. ``unowed`` were handed over outside the debt: before the first LISTEN's number, or after the
   end of a LISTEN. Reported, no violation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from spark_jobs.debt import BASE_BITS, Debt
from spark_jobs.jobs import JobResult
from spark_jobs.logs import Chunk, LogReader, Survey
from spark_jobs.schema import Kind
from spark_jobs.source import file_reports, load
from spark_jobs.storage import Directory

TITLE = "lost, duplicate, reordered and corrupted messages; exit status 2 if there are any"
KEYS = ("engine", "database", "channel")

_BLOCK_BITS = 16
_BLOCK = 1 << _BLOCK_BITS
_BUFFERED = 1 << 20

_LISTENER = ("host", "boot_id", "pid", "backend_id", "incomplete")
_SETTLED = ("expected", "missing", "dropped", "distinct", "unowed", "dup", "out_of_order")
_COUNTS = (*_SETTLED, "tail_from", "read_until_ns", "read_until_commit")


class _Checksums:
    """Collects (number, payload CRC) and puts them out by blocks of 65,536 numbers."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._keys: list[NDArray[np.int64]] = []
        self._crcs: list[NDArray[np.uint32]] = []
        self._buffered = 0

    def add(self, key: NDArray[np.int64], aux: NDArray[np.uint64]) -> bool:
        """True when it is time to put out."""
        self._keys.append(key)
        self._crcs.append(aux.astype(np.uint32))
        self._buffered += len(key)
        return self._buffered >= _BUFFERED

    def put_out(self, reader: LogReader) -> Iterator[Mapping[str, Any]]:
        if not self._buffered:
            return
        key, crc = np.concatenate(self._keys), np.concatenate(self._crcs)
        self._keys, self._crcs, self._buffered = [], [], 0
        order = _by_number(key)
        key, crc = key[order], crc[order]
        block = key >> _BLOCK_BITS
        start = np.flatnonzero(np.concatenate([[True], block[1:] != block[:-1]]))
        ends = np.append(start, len(key))
        yield _channel_columns(reader, block[start] >> (BASE_BITS - _BLOCK_BITS)) | {
            "role": self._role,
            "log_id": reader.log.log_id,
            "block": block[start] & ((1 << (BASE_BITS - _BLOCK_BITS)) - 1),
            "offsets": _binary((key & (_BLOCK - 1)).astype("<u2"), ends),
            "crcs": _binary(crc.astype("<u4"), ends),
        }


def _by_number(key: NDArray[np.int64]) -> NDArray[np.intp]:
    """A stable order of the keys. Within a channel they mostly rise: a radix sort then does."""
    channel = key >> BASE_BITS
    if channel.max() < 1 << 16:
        order = np.argsort(channel.astype(np.uint16), kind="stable")
        found = key[order]
        if (found[1:] >= found[:-1]).all():
            return order
    return np.argsort(key, kind="stable")


def _binary(values: NDArray[Any], ends: NDArray[np.int64]) -> pa.Array[Any]:
    """The slices of `values` between `ends` as byte strings, without a loop."""
    offsets = (ends * values.itemsize).astype("<i4")
    return pa.Array.from_buffers(
        pa.binary(), len(ends) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    )


def _channel_columns(reader: LogReader, channel: NDArray[np.int64]) -> dict[str, Any]:
    log = reader.log
    names = pa.array([name for _, name in reader.channels], type=pa.string())
    database = np.array([number for number, _ in reader.channels], dtype=np.int64)
    return {
        # One engine's numbers mean nothing in another's, nor on another host or after a reboot.
        "engine": f"{log.host}/{log.boot_id}/{log.engine}",
        "database": database[channel],
        "channel": names.take(pa.array(channel)),
    }


class Partials:
    """Rows of role ``listener``: what one log shows by itself; of role ``sender``: its last SEND;
    of roles ``sent`` and ``received``: checksums by block.
    """

    COLUMNS = (
        pa.field("role", pa.string()),
        pa.field("engine", pa.string()),
        pa.field("database", pa.int64()),
        pa.field("channel", pa.string()),
        pa.field("log_id", pa.string()),
        pa.field("block", pa.int64()),
        pa.field("offsets", pa.binary()),
        pa.field("crcs", pa.binary()),
        pa.field("last_seq", pa.int64()),
        pa.field("last_ns", pa.int64()),
        pa.field("last_commit", pa.int64()),
        pa.field("host", pa.string()),
        pa.field("boot_id", pa.string()),
        pa.field("pid", pa.int64()),
        pa.field("backend_id", pa.int64()),
        pa.field("incomplete", pa.int64()),
        *(pa.field(name, pa.int64()) for name in _COUNTS),
    )

    FIELDS = ("ts", "commit_seq", "chan_seq", "kind", "lag", "batch", "aux")

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._debt = Debt()
        self._sent = _Checksums("sent")
        self._received = _Checksums("received")
        self._last_seq = np.empty(0, dtype=np.int64)
        self._last_ns = np.empty(0, dtype=np.int64)
        self._last_commit = np.empty(0, dtype=np.int64)
        self._read_until_ns = 0
        self._read_until_commit = 0

    def add(self, chunk: Chunk) -> Iterator[Mapping[str, Any]]:
        kind = chunk.records["kind"]
        number = (chunk.channel << BASE_BITS) | chunk.signed("chan_seq")
        named = chunk.channel >= 0
        received = named & (kind == Kind.RECV)
        sent = named & (kind == Kind.SEND)
        idle = (kind == Kind.WAKE) & (chunk.records["batch"] == 0)
        self._read_until_ns = max(self._read_until_ns, int(chunk.signed("ts")[idle].max(initial=0)))
        self._read_until_commit = max(
            self._read_until_commit, int(chunk.signed("commit_seq")[received].max(initial=0))
        )
        self._debt.add(chunk, len(self._reader.channels))
        for which, checksums in ((received, self._received), (sent, self._sent)):
            if which.any() and checksums.add(number[which], chunk.records["aux"][which]):
                yield from checksums.put_out(self._reader)
        if sent.any():
            short = len(self._reader.channels) - len(self._last_seq)
            self._last_seq = np.pad(self._last_seq, (0, short), constant_values=-1)
            self._last_ns = np.pad(self._last_ns, (0, short))
            self._last_commit = np.pad(self._last_commit, (0, short))
            # A sender's records are in commit order: of equal channels the last one stays.
            self._last_seq[chunk.channel[sent]] = chunk.signed("chan_seq")[sent]
            self._last_ns[chunk.channel[sent]] = chunk.signed("ts")[sent]
            self._last_commit[chunk.channel[sent]] = chunk.signed("commit_seq")[sent]

    def finish(self) -> Iterator[Mapping[str, Any]]:
        yield from self._received.put_out(self._reader)
        yield from self._sent.put_out(self._reader)
        log = self._reader.log
        senders = np.flatnonzero(self._last_seq >= 0)
        if len(senders):
            yield _channel_columns(self._reader, senders) | {
                "role": "sender",
                "host": log.host,
                "boot_id": log.boot_id,
                "last_seq": self._last_seq[senders],
                "last_ns": self._last_ns[senders],
                "last_commit": self._last_commit[senders],
            }
        settled = self._debt.settle()
        if len(settled.channel) == 0:
            return
        yield _channel_columns(self._reader, settled.channel) | {
            "role": "listener",
            "log_id": log.log_id,
            "host": log.host,
            "boot_id": log.boot_id,
            "pid": log.pid,
            "backend_id": log.backend_id,
            "incomplete": int(self._reader.incomplete),
            # -1: no debt that could go on
            "tail_from": settled.open_end if log.alive else np.full(len(settled.channel), -1),
            "read_until_ns": self._read_until_ns,
            "read_until_commit": self._read_until_commit,
            **{name: getattr(settled, name) for name in _SETTLED},
        }


def _compare(key: tuple[Any, ...], rows: pa.Table) -> pa.Table:
    """Per receiving log: records of this block without a SEND, and with other bytes than it."""
    sent = np.zeros(_BLOCK, dtype=bool)
    crcs = np.zeros(_BLOCK, dtype=np.uint32)
    role = np.array(rows["role"].to_pylist())
    log_ids = rows["log_id"].to_pylist()
    pairs = [
        (np.frombuffer(offsets, dtype="<u2"), np.frombuffer(crc, dtype="<u4"))
        for offsets, crc in zip(rows["offsets"].to_pylist(), rows["crcs"].to_pylist(), strict=True)
    ]
    for i in np.flatnonzero(role == "sent"):
        offsets, crc = pairs[i]
        sent[offsets] = True
        crcs[offsets] = crc
    found: dict[str, list[int]] = {}
    for i in np.flatnonzero(role == "received"):
        offsets, crc = pairs[i]
        known = sent[offsets]
        entry = found.setdefault(log_ids[i], [0, 0])
        entry[0] += int(np.count_nonzero(~known))
        entry[1] += int(np.count_nonzero(known & (crcs[offsets] != crc)))
    return pa.table(
        {
            "engine": pa.array([key[0]] * len(found), pa.string()),
            "database": pa.array([key[1]] * len(found), pa.int64()),
            "channel": pa.array([key[2]] * len(found), pa.string()),
            "log_id": pa.array(list(found), pa.string()),
            "no_send": pa.array([entry[0] for entry in found.values()], pa.int64()),
            "corrupted": pa.array([entry[1] for entry in found.values()], pa.int64()),
        }
    )


def findings(partials: DataFrame) -> DataFrame:
    """One row per listener and channel, before the rules for tails and incomplete logs."""
    compared = (
        partials.where(sf.col("block").isNotNull())
        .groupBy(*KEYS, "block")
        .applyInArrow(
            _compare,
            "engine string, database bigint, channel string, log_id string, no_send bigint, "
            "corrupted bigint",
        )
        .groupBy(*KEYS, "log_id")
        .agg(sf.sum("no_send").alias("no_send"), sf.sum("corrupted").alias("corrupted"))
    )
    last = (
        partials.where(sf.col("role") == "sender")
        .groupBy(*KEYS)
        .agg(
            sf.max(
                sf.struct(
                    "last_seq",
                    "last_ns",
                    "last_commit",
                    sf.col("host").alias("last_host"),
                    sf.col("boot_id").alias("last_boot_id"),
                )
            ).alias("last")
        )
        .select(*KEYS, "last.*")
    )
    listeners = partials.where(sf.col("role") == "listener").select(
        *KEYS, "log_id", *_LISTENER, *_COUNTS
    )
    return listeners.join(compared, [*KEYS, "log_id"], "left").join(last, list(KEYS), "left")


def judge(found: Mapping[str, Any]) -> dict[str, Any]:
    """The row of API.md for one listener and channel."""
    tail = 0
    owes = found["tail_from"] >= 0 and found["last_seq"] is not None
    clocks = (found["host"], found["boot_id"]), (found["last_host"], found["last_boot_id"])
    if owes and (
        (clocks[0] == clocks[1] and found["read_until_ns"] >= found["last_ns"])
        or found["read_until_commit"] > found["last_commit"]
    ):
        tail = max(0, found["last_seq"] + 1 - found["tail_from"])
    missing = found["missing"] + tail
    incomplete = bool(found["incomplete"])
    return {
        "channel": found["channel"],
        "pid": found["pid"],
        "host": found["host"],
        "boot_id": found["boot_id"],
        "expected": found["expected"] + tail,
        "distinct": found["distinct"],
        "lost": None if incomplete else missing,
        "dup": found["dup"],
        "out_of_order": found["out_of_order"],
        "corrupted": found["corrupted"] or 0,
        "unproven": (found["no_send"] or 0) + (missing if incomplete else 0),
        "dropped": found["dropped"],
        "unowed": found["unowed"],
        "database": found["database"],
        "engine": found["engine"].split("/", 2)[2],
        "backend_id": found["backend_id"],
        "log_id": found["log_id"],
        "incomplete": incomplete,
    }


def is_violation(row: Mapping[str, Any]) -> bool:
    """Whether that row proves that a guarantee was broken."""
    broken = ("lost", "dup", "out_of_order", "corrupted")
    return not row["incomplete"] and any(row[name] for name in broken)


def run(session: SparkSession, survey: Survey, out: Directory) -> JobResult:
    """Rows as API.md has them, plus dropped, unowed, database, engine, backend_id, log_id."""
    partials = load(session, "audit", survey).persist()
    try:
        found = findings(partials)
        rows = [judge(row.asDict()) for row in found.orderBy(*KEYS, "pid", "log_id").collect()]
        found.write.mode("overwrite").parquet(str(out / "audit"))
        names = ("expected", "distinct", "lost", "dup", "out_of_order", "corrupted", "unproven")
        totals = {name: sum(row[name] or 0 for row in rows) for name in names}
        violation = any(map(is_violation, rows))
        return JobResult(rows, file_reports(partials, survey), violation, totals)
    finally:
        partials.unpersist()
