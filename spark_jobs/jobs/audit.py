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

What one log shows is `spark_jobs.audit.partials`; of several files it is read in pieces, one for
each (`spark_jobs.audit.debt`).

Bytes are compared by blocks of numbers (`spark_jobs.audit.sums`). Where these differ, and at the
ends of what a listener was there for, the logs are read again for the payload CRC of each message.

`spark_jobs.audit.topics` has the rules for topics; in keys of their rows ``channel`` is the topic
and ``queue`` its channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_jobs.audit import partials, topics
from spark_jobs.audit.debt import Account, Debt
from spark_jobs.audit.partials import BLOCK, COUNTS, Suspects, settled_columns
from spark_jobs.audit.sums import CHANNEL_BITS, Blocks, compare
from spark_jobs.directory import Directory
from spark_jobs.engine.base import Engine, Reduced, summed
from spark_jobs.engine.partials import reports_of
from spark_jobs.engine.tables import groups, write_rows
from spark_jobs.logs.model import Survey
from spark_jobs.result import JobResult

Partials = partials.Partials
"""What `spark_jobs.engine` looks for."""

KEYS = ("engine", "database", "channel")
_LISTENER = ("host", "boot_id", "pid", "backend_id", "incomplete")
_LAST = ("last_seq", "last_ns", "last_commit", "last_host", "last_boot_id")
_DIFFERENCES = ("no_send", "corrupted")
_TEXTS = ("engine", "channel", "log_id", "host", "boot_id", "last_host", "last_boot_id")

TABLE = pa.schema(
    [
        (name, pa.string() if name in _TEXTS else pa.int64())
        for name in (*KEYS, "log_id", *_LISTENER, *COUNTS, *_DIFFERENCES, *_LAST)
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


def _examine(table: pa.Table) -> pa.Table:
    """Rows of `Partials`, without those of sums; instead of these rows of role ``compared``, with
    ``no_send`` of a log and channel, of role ``suspects``, with ``blocks`` of a channel, and those
    of `topics.compare`.
    """
    of_sums = pc.is_valid(table["block"])
    rows = []
    for channel, group in groups(table.filter(of_sums), *KEYS, "block"):
        of_topics, of_channels = _parted(group)
        rows += _compare_sums(channel, of_channels)
        own = {name: channel[name] for name in KEYS}
        rows += [own | row for row in topics.compare(*_queues(of_topics))]
    dropped = ("block", "offsets", "crcs", "totals", "balances", "firsts", "marks")
    left = table.drop_columns(list(dropped))
    for name in ("no_send", "first"):
        left = left.append_column(name, pa.nulls(left.num_rows, pa.int64()))
    added = pa.Table.from_pylist(rows, schema=left.schema)
    return pa.concat_tables([left.filter(pc.invert(of_sums)), added])


def examined(engine: Engine, survey: Survey) -> Reduced:
    """What `_examine` makes of all logs."""
    return summed(engine.load("audit", survey), (*KEYS, "block"), _examine, KEYS)


def _compare(channel: Mapping[str, Any], rows: pa.Table) -> list[dict[str, Any]]:
    """Per receiving log: records of this block without a SEND, and with other bytes than it."""
    sent = np.zeros(BLOCK, dtype=bool)
    crcs = np.zeros(BLOCK, dtype=np.uint32)
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
