"""What one log shows of what was owed and handed over: the partial results of the audit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_jobs.audit import topics
from spark_jobs.audit.debt import BASE_BITS, Debt, Settled
from spark_jobs.audit.sums import BLOCK_BITS, CHANNEL_BITS, GROUP_BITS, Sums
from spark_jobs.logs.model import Chunk
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import UNNUMBERED, Kind

_RECV, _SEND, _WAKE = int(Kind.RECV), int(Kind.SEND), int(Kind.WAKE)

_CRC_BITS = 16
BLOCK = 1 << _CRC_BITS
"""So many messages have their checksums in one row."""
_BUFFERED = 1 << 20

_SETTLED = ("expected", "missing", "dropped", "distinct", "unowed", "dup", "out_of_order")
COUNTS = (*_SETTLED, "tail_from", "read_until_ns", "read_until_commit")
"""The figures in rows of role ``listener``."""

Suspects = dict[tuple[str, int, str], NDArray[np.int64]]
"""By channel: blocks of `spark_jobs.audit.sums`, in order."""


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
        block = key >> _CRC_BITS
        start = np.flatnonzero(np.concatenate([[True], block[1:] != block[:-1]]))
        ends = np.append(start, len(key))
        yield _channel_columns(reader, block[start] >> (BASE_BITS - _CRC_BITS)) | {
            "role": self._role,
            "log_id": reader.log.log_id,
            "block": block[start] & ((1 << (BASE_BITS - _CRC_BITS)) - 1),
            "offsets": _binary((key & (BLOCK - 1)).astype("<u2"), ends),
            "crcs": _binary(crc.astype("<u4"), ends),
        }


def _by_channel(channel: NDArray[np.int64]) -> NDArray[np.intp]:
    """A stable order; 16 bits are sorted by counting."""
    narrow = channel.max(initial=0) < 1 << 16
    return np.argsort(channel.astype(np.uint16) if narrow else channel, kind="stable")


def _by_number(key: NDArray[np.int64]) -> NDArray[np.intp]:
    """A stable order of the keys. Within a channel they mostly rise: a radix sort then does."""
    order = _by_channel(key >> BASE_BITS)
    found = key[order]
    return order if (found[1:] >= found[:-1]).all() else np.argsort(key, kind="stable")


def _binary(values: NDArray[Any], ends: NDArray[np.int64]) -> pa.Array[Any]:
    """The slices of `values` between `ends` as byte strings, without a loop."""
    offsets = (ends * values.itemsize).astype("<i4")
    return pa.Array.from_buffers(
        pa.binary(), len(ends) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    )


def _engine(reader: LogReader) -> str:
    """One engine's numbers mean nothing in another's, nor after a reboot or by another clock."""
    return f"{reader.log.clock}/{reader.log.engine}"


def _channel_columns(reader: LogReader, channel: NDArray[np.int64]) -> dict[str, Any]:
    names = pa.array([name for _, name in reader.channels], type=pa.string())
    database = np.array([number for number, _ in reader.channels], dtype=np.int64)
    return {
        "engine": _engine(reader),
        "database": database[channel],
        "channel": names.take(pa.array(channel)),
    }


class Partials:
    """Rows of role ``listener``: what one log shows by itself; of role ``sender``: its last SEND;
    of roles ``sent`` and ``received``: per channel the sums of its blocks, a group in a row.

    With `suspects`, only rows of the latter two roles: checksums of the messages in these blocks.

    Of a piece of a log there are rows of role ``account`` instead of ``listener``, one for each of
    its channels, and one of role ``piece``. With `only_debt` there is nothing but listeners.

    Rows of role ``queued`` are of topics, with ``queue`` "" for what was published; with
    `suspect_topics` of the messages in these blocks. A log that is incomplete has a row of role
    ``incomplete``.
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
        pa.field("blocks", pa.list_(pa.int64())),
        pa.field("sizes", pa.list_(pa.int64())),
        pa.field("totals", pa.list_(pa.int64())),
        pa.field("queue", pa.string()),
        pa.field("balances", pa.list_(pa.int64())),
        pa.field("firsts", pa.list_(pa.int64())),
        pa.field("marks", pa.binary()),
        pa.field("last_seq", pa.int64()),
        pa.field("last_ns", pa.int64()),
        pa.field("last_commit", pa.int64()),
        pa.field("host", pa.string()),
        pa.field("boot_id", pa.string()),
        pa.field("pid", pa.int64()),
        pa.field("backend_id", pa.int64()),
        pa.field("incomplete", pa.int64()),
        *(pa.field(name, pa.int64()) for name in COUNTS),
        pa.field("part", pa.int64()),
        pa.field("account", pa.list_(pa.int64())),
    )
    BY_FILE = True

    FIELDS = ("ts", "commit_seq", "chan_seq", "kind", "attempts", "lag", "batch", "aux", "flags")

    def __init__(
        self,
        reader: LogReader,
        suspects: Suspects | None = None,
        suspect_topics: Suspects | None = None,
        only_debt: bool = False,
    ) -> None:
        self._reader = reader
        self._only_debt = only_debt
        self._debt = Debt()
        self._suspects = suspects
        self._suspect_places = np.empty(0, dtype=np.int64)
        self._channels = 0
        self._details = {role: _Checksums(role) for role in ("received", "sent")}
        self._sums = {role: Sums() for role in ("received", "sent")}
        self._last_seq = np.empty(0, dtype=np.int64)
        self._last_ns = np.empty(0, dtype=np.int64)
        self._last_commit = np.empty(0, dtype=np.int64)
        self._read_until_ns = 0
        self._read_until_commit = 0
        self._topics = topics.Sums() if suspects is None else topics.Details()
        self._suspect_topics = suspect_topics or {}

    def add(self, chunk: Chunk) -> Iterator[Mapping[str, Any]]:
        records, kind = chunk.records, chunk.kind
        unnumbered = (records["flags"] & UNNUMBERED) != 0
        if unnumbered.any():
            unnumbered &= (kind == _RECV) | (kind == _SEND)
            chunk = replace(chunk, channel=np.where(unnumbered, -1, chunk.channel))
        named = chunk.channel >= 0
        received = np.flatnonzero(named & (kind == _RECV))
        sent = np.flatnonzero(named & (kind == _SEND))
        if self._only_debt:
            self._follow(chunk, kind, received, sent)
            return
        for role, which in (("received", received), ("sent", sent)):
            if len(which) == 0:
                continue
            at = which[_by_channel(chunk.channel[which])]
            number = chunk.channel[at] << BASE_BITS
            number |= records["chan_seq"][at].view(np.int64)
            if self._suspects is not None:
                yield from self._detailed(role, number, records["aux"][at])
            else:
                self._sums[role].add(number, records["aux"][at])
                if self._sums[role].is_full():
                    yield from self._summed(role)
        if self._suspects is None:
            self._follow(chunk, kind, received, sent)
        if len(received) + len(sent) < len(kind):
            yield from self._of_topics(chunk, kind)

    def _of_topics(self, chunk: Chunk, kind: NDArray[np.uint8]) -> Iterator[Mapping[str, Any]]:
        at = topics.of_topics(kind, chunk.channel)
        if len(at) == 0:
            return
        if isinstance(self._topics, topics.Details):
            engine = _engine(self._reader)
            for database, name in self._reader.channels[len(self._topics.wanted) :]:
                key = (engine, database, name.partition(":")[0])
                self._topics.wanted.append(self._suspect_topics.get(key, self._suspect_places[:0]))
        if self._topics.add(chunk.channel[at], chunk.records[at]):
            yield from self._queued()

    def _queued(self) -> Iterator[Mapping[str, Any]]:
        found = self._topics.take()
        if found is None:
            return
        channel, columns = found
        names = [name.partition(":") for _, name in self._reader.channels]
        topic, queue = (pa.array([parts[at] for parts in names], pa.string()) for at in (0, 2))
        which = pa.array(channel)
        columns |= {"channel": topic.take(which), "queue": queue.take(which)}
        yield _channel_columns(self._reader, channel) | columns | {"role": "queued"}

    def _follow(
        self,
        chunk: Chunk,
        kind: NDArray[np.uint8],
        received: NDArray[np.intp],
        sent: NDArray[np.intp],
    ) -> None:
        """What was owed, and how far the log goes."""
        records = chunk.records
        woke = np.flatnonzero((kind == _WAKE) & (chunk.channel < 0))  # no topic's consumer
        idle = woke[records["batch"][woke] == 0]
        self._read_until_ns = max(self._read_until_ns, int(records["ts"][idle].max(initial=0)))
        commit = records["commit_seq"]
        mostly = slice(None) if len(received) == len(kind) else received
        self._read_until_commit = max(
            self._read_until_commit, int(commit[mostly].max(initial=0)) if len(received) else 0
        )
        self._debt.add(chunk, len(self._reader.channels))
        if len(sent):
            short = len(self._reader.channels) - len(self._last_seq)
            self._last_seq = np.pad(self._last_seq, (0, short), constant_values=-1)
            self._last_ns = np.pad(self._last_ns, (0, short))
            self._last_commit = np.pad(self._last_commit, (0, short))
            # A sender's records are in commit order: of equal channels the last one stays.
            channel = chunk.channel[sent]
            last = np.full(len(self._last_seq), -1, dtype=np.intp)
            last[channel] = sent
            channel = np.flatnonzero(last >= 0)
            at = last[channel]
            self._last_seq[channel] = records["chan_seq"][at]
            self._last_ns[channel] = records["ts"][at]
            self._last_commit[channel] = commit[at]

    def _summed(self, role: str) -> Iterator[Mapping[str, Any]]:
        found = self._sums[role].take()
        if found is None:
            return
        group = found.place >> GROUP_BITS
        start = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]]))
        ends = pa.array(np.append(start, len(group)).astype(np.int32))
        columns = {
            "blocks": found.place & ((1 << CHANNEL_BITS) - 1),
            "sizes": found.count,
            "totals": found.total.view(np.int64),
        }
        group = group[start]
        yield _channel_columns(self._reader, group >> (CHANNEL_BITS - GROUP_BITS)) | {
            "role": role,
            "log_id": self._reader.log.log_id,
            "block": group & ((1 << (CHANNEL_BITS - GROUP_BITS)) - 1),
            **{
                name: pa.ListArray.from_arrays(ends, pa.array(each))
                for name, each in columns.items()
            },
        }

    def _detailed(
        self, role: str, number: NDArray[np.int64], aux: NDArray[np.uint64]
    ) -> Iterator[Mapping[str, Any]]:
        """Rows of the messages that are in suspect blocks."""
        assert self._suspects is not None
        channels = self._reader.channels
        if self._channels < len(channels):
            self._channels = len(channels)
            engine = _engine(self._reader)
            wanted = (
                self._suspects.get((engine, *channel), self._suspect_places[:0])
                | (index << CHANNEL_BITS)
                for index, channel in enumerate(channels)
            )
            self._suspect_places = np.concatenate([*wanted])
        place = number >> BLOCK_BITS
        after = np.searchsorted(self._suspect_places, place, side="right")
        before = np.searchsorted(self._suspect_places, place, side="left")
        which = np.flatnonzero(after > before)
        checksums = self._details[role]
        if len(which) and checksums.add(number[which], aux[which]):
            yield from checksums.put_out(self._reader)

    def finish(self) -> Iterator[Mapping[str, Any]]:
        if self._only_debt:
            yield from self._listened()
            return
        for role, checksums in self._details.items():
            yield from checksums.put_out(self._reader)
            yield from self._summed(role)
        yield from self._queued()
        log = self._reader.log
        if self._reader.incomplete:
            yield {"role": ["incomplete"], "engine": _engine(self._reader)}
        senders = np.flatnonzero(self._last_seq >= 0)
        if len(senders):
            yield _channel_columns(self._reader, senders) | {
                "role": "sender",
                "log_id": log.log_id,
                "part": log.files[0].part,
                "host": log.host,
                "boot_id": log.boot_id,
                "last_seq": self._last_seq[senders],
                "last_ns": self._last_ns[senders],
                "last_commit": self._last_commit[senders],
            }
        if self._suspects is None:
            yield from self._accounts() if log.is_piece else self._listened()

    def _writer(self) -> dict[str, Any]:
        log = self._reader.log
        return {
            "log_id": log.log_id,
            "host": log.host,
            "boot_id": log.boot_id,
            "pid": log.pid,
            "backend_id": log.backend_id,
            "incomplete": int(self._reader.incomplete),
            "read_until_ns": self._read_until_ns,
            "read_until_commit": self._read_until_commit,
        }

    def _listened(self) -> Iterator[Mapping[str, Any]]:
        settled = self._debt.settle()
        if len(settled.channel) == 0:
            return
        alive = self._reader.log.alive
        yield _channel_columns(self._reader, settled.channel) | {
            "role": "listener",
            **self._writer(),
            **settled_columns(settled, alive=alive),
        }

    def _accounts(self) -> Iterator[Mapping[str, Any]]:
        """Rows of all channels: the pieces after this one may need to know that they are there."""
        part = self._reader.log.files[0].part
        found = [account.to_list() for account in self._debt.accounts()]
        if found:
            channels = np.arange(len(found))
            account = pa.array(found, pa.list_(pa.int64()))
            writer = {"log_id": self._reader.log.log_id, "part": part, "account": account}
            yield _channel_columns(self._reader, channels) | writer | {"role": "account"}
        gaps = {"dropped": int(self._debt.gaps)}
        yield {"role": ["piece"], "engine": _engine(self._reader), "part": part} | (
            self._writer() | gaps
        )


def settled_columns(settled: Settled, *, alive: bool) -> dict[str, Any]:
    """The columns of rows of role ``listener``."""
    none = np.full(len(settled.channel), -1)  # no debt that could go on
    figures = {name: getattr(settled, name) for name in _SETTLED}
    return figures | {"tail_from": settled.open_end if alive else none}
