"""A trace for ui.perfetto.dev: what each backend did, and which commit each message is from.

The file is JSON in the format of Chrome's traces, gzip's. A process is a process of the trace, a
backend a thread in it. Every record is a slice as long as half a microsecond, or until the next
record of that backend; a sleep goes from the last record before it to its end, and was in part not
sleep when the program did something else meanwhile. An arrow leads from a commit to each hand-over,
and a job of a topic is a slice of its own from its delivery to what became of it.

Times are those of the wall clock, so that hosts stand side by side as well as their clocks agree.

What Perfetto's importer of JSON makes of a trace, and this one keeps to:

1. Slices of a thread lie within each other or apart: one that overlaps another is dropped. Records
   of the same time, as those of a batch, stand one nanosecond after the other.
2. Events are taken by time, those of the same time in the order of the file, which is in order.
3. An end of an arrow belongs to the innermost slice of its thread that is open then; the beginning
   has to come before the end, or there is no arrow. Where the beginning's slice was moved behind
   the end, the arrow begins at the first of the records of its time.
4. A thread's number alone names it: no two threads, of whatever processes, have the same.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count, groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.directory import Directory
from spark_jobs.engine.base import Engine, summed
from spark_jobs.engine.partials import reports_of
from spark_jobs.engine.tables import ordered
from spark_jobs.errors import CannotRunError
from spark_jobs.figures.windows import numbers, place
from spark_jobs.logs.model import Chunk, Survey
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import WAKE_NAMES, Kind
from spark_jobs.result import JobResult

MOST = 1_000_000
"""Events that Perfetto's page shows without trouble."""
PLACE = ("host", "boot_id", "engine")
_LOG = (*PLACE, "pid", "starttime", "backend_id")
_RECORD = ("bytes", "commit_seq", "chan_seq", "peer", "lag", "batch", "attempts", "kind", "wake")
_NUMBERS = ("pid", "starttime", "backend_id", "database", "at", "ref", "before", "number", *_RECORD)
_SLICE_NS = 500
_DONE = (Kind.FIN, Kind.REQ, Kind.TIMEOUT)


class Partials:
    """A row per record: `at` and `ref`, ns of the wall clock (0: it has none, or of another clock);
    `before`, that of the record before it; `number`, which one of its log it is.
    """

    COLUMNS = (
        *(pa.field(name, pa.string()) for name in PLACE),
        pa.field("channel", pa.string()),
        *numbers(*_NUMBERS, "untold"),
    )
    FIELDS = ("ts", "ref_ts", *_RECORD)
    PEERS = True

    def __init__(self, reader: LogReader, most: int) -> None:
        self._reader = reader
        self._left = most
        self._before = self._number = 0
        self._untold = 0

    def add(self, chunk: Chunk) -> Iterator[Mapping[str, Any]]:
        told = min(len(chunk.channel), self._left)
        self._left -= told
        self._untold += len(chunk.channel) - told
        if not told:
            return
        records, channel = chunk.records[:told], chunk.channel[:told]
        at = records["ts"].astype(np.int64) + chunk.clock_ns
        known = (records["ref_ts"] > 0) & self._reader.comparable(records)
        ref = np.where(known, records["ref_ts"].astype(np.int64) + chunk.clock_ns, 0)
        names = [name for _, name in self._reader.channels]
        databases = [database for database, _ in self._reader.channels]
        log = self._reader.log
        yield {
            **place(self._reader),
            "pid": log.pid,
            "starttime": log.starttime,
            "backend_id": log.backend_id,
            "channel": pa.array([*names, ""]).take(pa.array(channel % (len(names) + 1))),
            "database": np.array([*databases, -1])[channel],
            "at": at,
            "ref": ref,
            "before": np.concatenate([[self._before], at[:-1]]),
            "number": self._number + np.arange(told),
            **{name: records[name].astype(np.int64) for name in _RECORD},
        }
        self._before = int(at[-1])
        self._number += told

    def finish(self) -> Iterator[Mapping[str, Any]]:
        if self._untold:
            yield {"untold": [self._untold]}


def table(rows: pa.Table) -> pa.Table:
    """Nothing is added up."""
    return rows.select([*PLACE, "channel", *_NUMBERS])


@dataclass(frozen=True)
class _At:
    """A slice: its process and thread, when it begins, and when the first one of its time does."""

    pid: int
    tid: int
    begin: int
    first: int


class Trace:
    """The events of all rows, which are in the order of their logs and times.

    `begin`: ns of the wall clock, from which times count. JavaScript's numbers are too coarse for
    those since 1970.
    """

    def __init__(self, begin: int) -> None:
        self._begin = begin
        self._names: list[dict[str, Any]] = []
        self._events: list[tuple[int, int, dict[str, Any]]] = []
        """With their times, and what is to be first of those of the same time."""
        self.backends: list[dict[str, Any]] = []
        self._pids: dict[tuple[Any, ...], int] = {}
        self._numbers = count(1)
        self._sent: dict[tuple[Any, ...], _At] = {}
        self._received: list[tuple[tuple[Any, ...], _At]] = []

    def add(self, log: Mapping[str, Any], rows: list[dict[str, Any]]) -> None:
        """All that a backend logged."""
        pid = self._process(log)
        tid = next(self._numbers)
        self._say("thread_name", f"backend {log['backend_id']} of {log['engine']}", pid, tid)
        ends = [*(row["at"] for row in rows[1:]), rows[-1]["at"] + _SLICE_NS]
        free, spot, before = rows[0]["at"], _At(pid, tid, 0, 0), None
        for row, end in zip(rows, ends, strict=True):
            at = max(row["at"], free)
            spot = _At(pid, tid, at, spot.first if row["at"] == before else at)
            self._sleep(row, free, spot)
            free, before = at + min(_SLICE_NS, max(end - at, 1)), row["at"]
            self._record(log, row, spot, free - at)
        kinds = np.bincount([row["kind"] for row in rows], minlength=len(Kind) + 1)
        counts = {kind.name.lower(): int(kinds[kind]) for kind in Kind if kind != Kind.CHANDEF}
        self.backends.append({**{name: log[name] for name in _LOG}, **counts})

    def _process(self, log: Mapping[str, Any]) -> int:
        """Numbers of the trace: pids of several hosts and boots may be the same."""
        key = tuple(log[name] for name in ("host", "boot_id", "pid", "starttime"))
        pid = self._pids.get(key)
        if pid is None:
            pid = self._pids[key] = next(self._numbers)
            self._say("process_name", f"pid {log['pid']} on {log['host']}", pid)
        return pid

    def _say(self, what: str, name: str, pid: int, tid: int | None = None) -> None:
        thread = {} if tid is None else {"tid": tid}
        self._names.append({"ph": "M", "name": what, "pid": pid, **thread, "args": {"name": name}})

    def _put(self, at: int, rank: int, event: dict[str, Any]) -> None:
        event["ts"] = (at - self._begin) / 1000
        self._events.append((at, rank, event))

    def _sleep(self, row: Mapping[str, Any], free: int, spot: _At) -> None:
        """Up to where the slice of its WAKE begins."""
        if row["kind"] != Kind.WAKE or not row["before"]:
            return
        begin = max(free, row["before"])
        if begin < spot.begin:
            name = f"asleep, until {WAKE_NAMES[min(row['wake'], 7)]}"
            asleep = _At(spot.pid, spot.tid, begin, begin)
            self._slice("sleep", name, asleep, spot.begin - begin, {})

    def _record(self, log: Mapping[str, Any], row: Mapping[str, Any], spot: _At, long: int) -> None:
        kind = Kind(row["kind"])
        arguments = {name: row[name] for name in _RECORD[:-2] if row[name]}
        if row["ref"]:
            arguments["latency_us"] = (row["at"] - row["ref"]) / 1000
        self._slice(kind.name, f"{kind.name} {row['channel']}".rstrip(), spot, long, arguments)
        key = (*(log[name] for name in PLACE), row["database"])
        if kind in (Kind.SEND, Kind.PUBLISH):
            number = row["commit_seq"] if kind == Kind.PUBLISH else row["chan_seq"]
            self._sent[(*key, row["channel"], number)] = spot
        if kind in (Kind.RECV, Kind.DELIVER):
            topic = row["channel"].partition(":")[0] if kind == Kind.DELIVER else row["channel"]
            number = row["commit_seq"] if kind == Kind.DELIVER else row["chan_seq"]
            self._received.append(((*key, topic, number), spot))
        if kind == Kind.DELIVER or kind in _DONE:
            self._job(key, row, kind, spot)

    def _slice(self, category: str, name: str, spot: _At, long: int, arguments: Any) -> None:
        event = {"ph": "X", "cat": category, "name": name, "dur": long / 1000}
        event |= {"pid": spot.pid, "tid": spot.tid, "args": arguments}
        self._put(spot.begin, 0, event)

    def _job(self, key: tuple[Any, ...], row: Mapping[str, Any], kind: Kind, spot: _At) -> None:
        """Jobs of a backend overlap, so they are slices of their own, beside the thread."""
        event: dict[str, Any] = {
            "ph": "b" if kind == Kind.DELIVER else "e",
            "cat": "job",
            "name": row["channel"],
            "id": "/".join(map(str, (*key, row["channel"], row["commit_seq"]))),
            "pid": spot.pid,
            "tid": spot.tid,
        }
        if kind != Kind.DELIVER:
            event["args"] = {"end": kind.name}
        self._put(spot.begin, 0, event)

    def arrows(self) -> dict[str, int]:
        """From commits to hand-overs; how many hand-overs have none: no log has their commit, or it
        is of a later time.
        """
        without = {"of_unknown_commits": 0, "of_later_commits": 0}
        numbers = count(1)
        for key, spot in self._received:
            sent = self._sent.get(key)
            if sent is None or sent.first > spot.begin:
                without["of_unknown_commits" if sent is None else "of_later_commits"] += 1
                continue
            begin = sent.begin if sent.begin <= spot.begin else sent.first
            event = {"cat": "message", "name": key[4], "id": next(numbers)}
            self._put(begin, 1, {**event, "ph": "s", "pid": sent.pid, "tid": sent.tid})
            end = {"ph": "f", "bp": "e", "pid": spot.pid, "tid": spot.tid}
            self._put(spot.begin, 2, {**event, **end})
        return without

    def __len__(self) -> int:
        return len(self._names) + len(self._events)

    def _in_order(self) -> Iterator[dict[str, Any]]:
        """Names, then all others by time."""
        self._events.sort(key=itemgetter(0, 1))
        return chain(self._names, map(itemgetter(2), self._events))

    def compressed(self) -> bytes:
        """The file; always the same for the same events."""
        encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
        body = ",\n".join(map(encode, self._in_order()))
        begin = str(np.datetime64(self._begin, "ns"))
        head = json.dumps({"displayTimeUnit": "ns", "otherData": {"begin": f"{begin}Z"}})
        text = f'{head[:-1]}, "traceEvents": [\n{body}\n]}}\n'
        return gzip.compress(text.encode(), compresslevel=6, mtime=0)


def run(engine: Engine, survey: Survey, out: Directory, *, most: int = MOST) -> JobResult:
    """Rows: host, boot_id, engine, pid, starttime, backend_id, and of each kind how many records.

    The trace is `perfetto.json.gz` in `out`. Raises CannotRunError when it would have more than
    `most` records.
    """
    partials = engine.load("perfetto", survey, most=most)
    found, others = summed(partials, PLACE, table)
    untold = sum(filter(None, others["untold"].to_pylist()))
    if found.num_rows + untold > most:
        raise CannotRunError(
            f"a trace of {found.num_rows + untold:,} records is more than Perfetto shows well: "
            "choose with --since and --until, or say --most"
        )
    trace = Trace(pc.min(found["at"]).as_py() or 0)
    for log, rows in _by_log(found):
        trace.add(log, rows)
    without = trace.arrows()
    (out / "perfetto.json.gz").write_bytes(trace.compressed())
    totals = {"events": len(trace), **without}
    return JobResult(trace.backends, reports_of(others, survey), totals=totals)


def _by_log(found: pa.Table) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    rows = ordered(
        found, *_LOG, "at", "number", "kind", "commit_seq", "chan_seq", "channel"
    ).to_pylist()
    for _, own in groupby(rows, key=itemgetter(*_LOG)):
        log = list(own)
        yield log[0], log
