"""Was every message that was owed handed over: once, in order, unchanged?

1. ``chan_seq`` is dense per (database, channel). A listener (one log) owes every number of a
   channel from the ``chan_seq`` of its LISTEN record on. What came by a pattern has no number, and
   is no part of it.
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

A log of several files is read in pieces, one for each (`spark_jobs.audit.debt`).

Bytes are compared by blocks of numbers (`spark_jobs.audit.sums`). Where these differ, and at the
ends of what a listener was there for, the logs are read again for the payload CRC of each message.

`spark_jobs.audit.topics` has the rules for topics; in keys of their rows ``channel`` is the topic
and ``queue`` its channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_jobs.audit import topics
from spark_jobs.audit.debt import BASE_BITS, Account, Debt, Settled
from spark_jobs.audit.sums import BLOCK_BITS, CHANNEL_BITS, GROUP_BITS, Blocks, Sums, compare
from spark_jobs.directory import Directory
from spark_jobs.engine.base import Engine, Reduced, summed
from spark_jobs.engine.partials import reports_of
from spark_jobs.engine.tables import groups, write_rows
from spark_jobs.logs.model import Chunk, Survey
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import UNNUMBERED, Kind
from spark_jobs.result import JobResult

KEYS = ("engine", "database", "channel")
_RECV, _SEND, _WAKE = int(Kind.RECV), int(Kind.SEND), int(Kind.WAKE)

_BLOCK_BITS = 16
_BLOCK = 1 << _BLOCK_BITS
_BUFFERED = 1 << 20

_LISTENER = ("host", "boot_id", "pid", "backend_id", "incomplete")
_SETTLED = ("expected", "missing", "dropped", "distinct", "unowed", "dup", "out_of_order")
_COUNTS = (*_SETTLED, "tail_from", "read_until_ns", "read_until_commit")
_LAST = ("last_seq", "last_ns", "last_commit", "last_host", "last_boot_id")
_DIFFERENCES = ("no_send", "corrupted")
_TEXTS = ("engine", "channel", "log_id", "host", "boot_id", "last_host", "last_boot_id")

TABLE = pa.schema(
    [
        (name, pa.string() if name in _TEXTS else pa.int64())
        for name in (*KEYS, "log_id", *_LISTENER, *_COUNTS, *_DIFFERENCES, *_LAST)
    ]
)
"""The schema of ``audit/``."""
TOPICS = pa.schema(
    [
        *((name, pa.int64() if name == "database" else pa.string()) for name in (*KEYS, "queue")),
        *((name, pa.int64()) for name in (*topics.FIGURES, "incomplete")),
    ]
)
"""The schema of ``audit_topics/``."""

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
        *(pa.field(name, pa.int64()) for name in _COUNTS),
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


_SUMS = ("blocks", "sizes", "totals")


def _blocks_of(table: pa.Table, owner: NDArray[np.int64]) -> Blocks:
    """The blocks in rows of `Partials`; `owner` of each row takes the place of the channel."""
    block, count, total = (table[name].combine_chunks() for name in _SUMS)
    place = np.repeat(owner << CHANNEL_BITS, pc.list_value_length(block).to_numpy())
    place |= block.flatten().to_numpy()
    return Blocks(place, count.flatten().to_numpy(), total.flatten().to_numpy().view(np.uint64))


def _compare_sums(channel: Mapping[str, Any], table: pa.Table) -> list[dict[str, Any]]:
    """Rows of role ``compared`` for one group of a channel, and one of role ``suspects``."""
    is_sent = pc.equal(table["role"], "sent")
    sent, received = table.filter(is_sent), table.filter(pc.invert(is_sent))
    logs, log = np.unique(received["log_id"].to_pylist(), return_inverse=True)
    found = compare(
        _blocks_of(sent, np.zeros(sent.num_rows, dtype=np.int64)),
        _blocks_of(received, log.astype(np.int64)),
        np.zeros(len(logs), dtype=np.int64),
    )
    own = {name: channel[name] for name in KEYS}
    rows = [
        own | {"role": "compared", "log_id": str(logs[i]), "no_send": int(found.unsent[i])}
        for i in np.flatnonzero(found.unsent)
    ]
    if len(found.suspects):
        rows.append(own | {"role": "suspects", "blocks": found.suspects})
    return rows


def _parted(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows of topics, and the others."""
    queued = pc.equal(rows["role"], "queued")
    return rows.filter(queued), rows.filter(pc.invert(queued))


def _queues(rows: pa.Table) -> tuple[pa.Table, dict[str, pa.Table]]:
    """What was published, and what each queue has."""
    queues = {key["queue"]: own for key, own in groups(rows, "queue")}
    return queues.pop("", rows.slice(0, 0)), queues


def _examine(partials: pa.Table) -> pa.Table:
    """Rows of `Partials`, without those of sums; instead of these rows of role ``compared``, with
    ``no_send`` of a log and channel, of role ``suspects``, with ``blocks`` of a channel, and those
    of `topics.compare`.
    """
    of_sums = pc.is_valid(partials["block"])
    rows = []
    for channel, group in groups(partials.filter(of_sums), *KEYS, "block"):
        of_topics, of_channels = _parted(group)
        rows += _compare_sums(channel, of_channels)
        own = {name: channel[name] for name in KEYS}
        rows += [own | row for row in topics.compare(*_queues(of_topics))]
    dropped = ("block", "offsets", "crcs", "totals", "balances", "firsts", "marks")
    left = partials.drop_columns(list(dropped))
    for name in ("no_send", "first"):
        left = left.append_column(name, pa.nulls(left.num_rows, pa.int64()))
    added = pa.Table.from_pylist(rows, schema=left.schema)
    return pa.concat_tables([left.filter(pc.invert(of_sums)), added])


def examined(engine: Engine, survey: Survey) -> Reduced:
    """What `_examine` makes of all logs."""
    return summed(engine.load("audit", survey), (*KEYS, "block"), _examine, KEYS)


def _compare(channel: Mapping[str, Any], rows: pa.Table) -> list[dict[str, Any]]:
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
    own = {name: channel[name] for name in KEYS}
    return [
        own | {"log_id": log_id} | dict(zip(_DIFFERENCES, entry, strict=True))
        for log_id, entry in found.items()
    ]


_COMPARED = pa.schema(
    [
        *((name, pa.int64() if name == "database" else pa.string()) for name in KEYS),
        *((name, pa.string()) for name in ("log_id", "queue")),
        *((name, pa.int64()) for name in ("block", *_DIFFERENCES, *topics.COMPARED)),
    ]
)


def _compare_details(details: pa.Table) -> pa.Table:
    rows = []
    for channel, group in groups(details, *KEYS, "block"):
        of_topics, of_channels = _parted(group)
        rows += _compare(channel, of_channels)
        rows += [channel | row for row in topics.compare_messages(*_queues(of_topics))]
    return pa.Table.from_pylist(rows, schema=_COMPARED)


def _differences(engine: Engine, survey: Survey, **suspects: Suspects) -> list[dict[str, Any]]:
    """Per channel, block and receiving log: ``no_send`` and ``corrupted`` of these messages; per
    topic, block and ``queue`` what `topics.compare_messages` has.
    """
    details = engine.load("audit", survey, **suspects)
    found: list[dict[str, Any]] = summed(
        details, ("block", *KEYS), _compare_details, KEYS
    ).table.to_pylist()
    return found


def _of_role(table: pa.Table, role: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.filter(pc.equal(table["role"], role)).to_pylist()
    return rows


def _key(row: Mapping[str, Any]) -> tuple[str, int, str]:
    return row["engine"], row["database"], row["channel"]


def _suspects(rows: Iterable[Mapping[str, Any]]) -> Suspects:
    """The suspects named by rows with ``blocks`` of a channel."""
    parts: dict[tuple[str, int, str], set[int]] = {}
    for row in rows:
        parts.setdefault(_key(row), set()).update(row["blocks"])
    return {channel: np.array(sorted(blocks)) for channel, blocks in parts.items() if blocks}


def _put_together(
    pieces: Sequence[Mapping[str, Any]], accounts: Sequence[Mapping[str, Any]], *, alive: bool
) -> list[dict[str, Any]] | None:
    """Rows of role ``listener`` of a log that was read in these pieces, which are in order; None
    if it has to be read in order.
    """
    of_part: dict[int, dict[tuple[Any, ...], Account]] = {row["part"]: {} for row in pieces}
    for row in accounts:
        of_part[row["part"]][_key(row)] = Account.from_list(row["account"])
    known: dict[tuple[Any, ...], Account] = {}
    for row in pieces:
        own = of_part[row["part"]]
        for key in {**known, **own}:
            if key not in known:
                known[key] = own[key]
                continue
            account = known[key].then(own.get(key), gaps=bool(row["dropped"]))
            if account is None:
                return None
            known[key] = account
    settled = Debt.of(list(known.values())).settle()
    keys = [list(known)[channel] for channel in settled.channel]
    columns = settled_columns(settled, alive=alive)
    names = ("log_id", "host", "boot_id", "pid", "backend_id")
    writer = {"role": "listener"} | {name: pieces[-1][name] for name in names}
    for name in ("incomplete", "read_until_ns", "read_until_commit"):
        writer[name] = max(row[name] for row in pieces)
    return [
        dict(zip(KEYS, key, strict=True))
        | writer
        | {name: int(values[i]) for name, values in columns.items()}
        for i, key in enumerate(keys)
    ]


def _of_pieces(engine: Engine, survey: Survey, table: pa.Table) -> list[dict[str, Any]]:
    """The rows of role ``listener`` of all logs that were read in pieces."""
    parts: dict[str, list[dict[str, Any]]] = {}
    accounts: dict[str, list[dict[str, Any]]] = {}
    for found, role in ((parts, "piece"), (accounts, "account")):
        for row in _of_role(table, role):
            found.setdefault(row["log_id"], []).append(row)
    logs = {log.log_id: log for log in survey.logs}
    rows, in_order = [], []
    for log_id in sorted(parts):
        pieces = sorted(parts[log_id], key=lambda row: int(row["part"]))
        log = logs[log_id]
        found_rows = _put_together(pieces, accounts.get(log_id, []), alive=log.alive)
        if found_rows is None:
            in_order.append(replace(log, in_order=True))
        else:
            rows += found_rows
    if in_order:
        debts = engine.load("audit", Survey(in_order), only_debt=True)
        rows += _of_role(summed(debts, KEYS, lambda each: each).table, "listener")
    return rows


def _listeners(
    table: pa.Table,
    of_pieces: Iterable[dict[str, Any]],
    compared: Iterable[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """One row of `TABLE` per listener and channel, before any rule for incomplete logs."""
    differences: dict[tuple[Any, ...], dict[str, int]] = {}
    for row in (*_of_role(table, "compared"), *compared):
        entry = differences.setdefault((*_key(row), row["log_id"]), dict.fromkeys(_DIFFERENCES, 0))
        for name in _DIFFERENCES:
            entry[name] += row.get(name) or 0
    last: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    senders: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(_of_role(table, "sender"), key=lambda row: int(row["part"])):
        senders[(*_key(row), row["log_id"])] = row  # of a log's pieces the last one's
    for row in senders.values():
        names = (name.removeprefix("last_") if name in _LAST[3:] else name for name in _LAST)
        mine = tuple(row[name] for name in names)
        last[_key(row)] = max(last.get(_key(row), mine), mine)
    found = []
    for row in (*_of_role(table, "listener"), *of_pieces):
        merged = dict.fromkeys((*_DIFFERENCES, *_LAST)) | row
        merged |= differences.get((*_key(row), row["log_id"]), {})
        merged |= dict(zip(_LAST, last.get(_key(row), ()), strict=False))
        found.append({name: merged[name] for name in TABLE.names})
    return sorted(found, key=lambda row: (*_key(row), row["pid"], row["log_id"]))


def _topics(
    table: pa.Table, queues: topics.Queues, compared: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """One row of `TOPICS` per topic and channel of it."""
    published: dict[tuple[Any, ...], dict[int, int]] = {}
    for row in _of_role(table, "topic"):
        sizes = zip(row["blocks"], row["sizes"], strict=True)
        published.setdefault(_key(row), {}).update(sizes)
    parts: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for each in compared:
        parts.setdefault((*_key(each), each["queue"]), []).append(each)
    incomplete = {row["engine"] for row in _of_role(table, "incomplete")}
    return [
        dict(zip((*KEYS, "queue"), key, strict=True))
        | queue.settled(published.get(key[:-1], {}), parts.get(key, []))
        | {"incomplete": int(key[0] in incomplete)}
        for key, queue in sorted(queues.items())
    ]


def _found(
    engine: Engine, survey: Survey, table: pa.Table
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of `TABLE` and of `TOPICS`; `table` is what was `examined`."""
    queues: topics.Queues = {}
    for row in _of_role(table, "queue"):
        queues.setdefault((*_key(row), row["queue"]), topics.Queue()).add(row)
    suspects = _suspects(_of_role(table, "suspects"))
    doubtful = [
        dict(zip(KEYS, key, strict=False)) | {"blocks": queue.suspects}
        for key, queue in queues.items()
    ]
    suspect_topics = _suspects(doubtful)
    compared = []
    if suspects or suspect_topics:
        compared = _differences(engine, survey, suspects=suspects, suspect_topics=suspect_topics)
    of_topics = [row for row in compared if row["queue"] is not None]
    of_listeners = [row for row in compared if row["queue"] is None]
    of_pieces = _of_pieces(engine, survey, table)
    return _listeners(table, of_pieces, of_listeners), _topics(table, queues, of_topics)


def judge(found: Mapping[str, Any]) -> dict[str, Any]:
    """The row for one listener and channel."""
    tail = 0
    owes = found["tail_from"] >= 0 and found["last_seq"] is not None
    # Of one clock: it is a part of the engine.
    if owes and (
        found["read_until_ns"] >= found["last_ns"]
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
        "engine": found["engine"].split("/", 1)[1],
        "backend_id": found["backend_id"],
        "log_id": found["log_id"],
        "incomplete": incomplete,
    }


def judge_topic(found: Mapping[str, Any]) -> dict[str, Any]:
    """The row for one topic and channel of it."""
    incomplete = bool(found["incomplete"])
    proved = {
        name: None if incomplete and name in topics.UNPROVEN else found[name]
        for name in topics.FIGURES
    }
    return {
        "topic": found["channel"],
        "channel": found["queue"],
        **proved,
        "database": found["database"],
        "engine": found["engine"].split("/", 1)[1],
        "incomplete": incomplete,
    }


_SHOWN = (
    *("channel", "pid", "host", "expected", "distinct", "lost", "dup", "out_of_order"),
    *("corrupted", "unproven", "dropped"),
)


def is_violation(row: Mapping[str, Any]) -> bool:
    """Whether that row, of a listener or of a topic, proves that a guarantee was broken."""
    if "topic" in row:
        return bool(row["finished_twice"] or row["delivered_after"])
    broken = ("lost", "dup", "out_of_order", "corrupted")
    return not row["incomplete"] and any(row[name] for name in broken)


def run(engine: Engine, survey: Survey, out: Directory) -> JobResult:
    """Rows as in docs/spark.md, plus dropped, unowed, database, engine, backend_id, log_id; and
    ``topics``, of their channels.
    """
    table, others = examined(engine, survey)
    found, found_topics = _found(engine, survey, table)
    write_rows(out / "audit", found, TABLE)
    write_rows(out / "audit_topics", found_topics, TOPICS)
    rows = [judge(row) for row in found]
    names = ("expected", "distinct", "lost", "dup", "out_of_order", "corrupted", "unproven")
    totals = {name: sum(row[name] or 0 for row in rows) for name in names}
    worst = sorted(rows, key=lambda row: not is_violation(row))
    shown = [{name: row[name] for name in _SHOWN} for row in worst]
    of_topics = sorted(map(judge_topic, found_topics), key=lambda row: not is_violation(row))
    return JobResult(
        rows,
        reports_of(others, survey),
        totals=totals,
        shown=shown,
        broken=is_violation,
        further={"topics": of_topics},
    )
