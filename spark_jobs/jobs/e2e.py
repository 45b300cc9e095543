"""From publishing a message on a topic to finishing it, per topic and channel: how long it waited
for a consumer, how long the consumer took, and both together.

What the log of a consumer holds: DELIVER (handed over), FIN (finished), REQ (requeued), TIMEOUT
(taken away). Each has ``ts``; ``ref_ts``, when the message was published by the same clock, or 0
when that is not known (published before the last boot); ``commit_seq``, the message; ``attempts``,
which delivery it was; and a channel named TOPIC:CHANNEL, where neither part can contain a colon.

*wait* is from publishing to the first delivery, *service* from a delivery to the FIN of it, which
the same log holds.

A log may be read in pieces. Each tells which deliveries it leaves unanswered, and what it begins
with that answers a delivery from before; these are put together afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.directory import Directory
from spark_jobs.engine.base import Engine, summed
from spark_jobs.engine.partials import reports_of
from spark_jobs.engine.tables import write_table
from spark_jobs.figures.histogram import QUANTILES, bucket
from spark_jobs.figures.quantiles import HISTOGRAM, Ints, grouped, summarised
from spark_jobs.figures.windows import (
    WINDOW_COLUMNS,
    Buffer,
    channel_columns,
    dense,
    histograms,
    nanoseconds,
    numbers,
    only_timed,
    place,
    reduce_by,
    window_of,
    with_time,
)
from spark_jobs.logs.model import Chunk, Survey
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import Kind
from spark_jobs.result import JobResult

KEYS = ("engine", "database", "topic", "channel")
COUNTS = ("delivered", "finished", "requeued", "timed_out", "sum_attempts")
MEASURES = ("", "wait_", "service_")
"""What is timed, as a prefix of columns: without one it is from publishing to finishing."""
LEFT_OUT = ("negative", "unknown", "other_clock")

WINDOW_S = 1.0
_WINDOW = ("host", "boot_id", *KEYS, "window")
_LOGGED = ("engine", "database", "channel")
"""What a log has of `KEYS`: topic and channel in one name."""
_KINDS = (Kind.DELIVER, Kind.FIN, Kind.REQ, Kind.TIMEOUT)
_NEVER = np.iinfo(np.int64).max
_FIGURES = {"timed": "sum", "sum_ns": "sum", "min_ns": "min", "max_ns": "max"}
_UNDER_WAY = 1 << 16
"""So many deliveries of a log, and of a channel from one piece to the next, are kept to wait for
their FIN. Those that time out are never closed where another process found it out."""


_SERVED = ("commit_seq", "attempts", "ts")


class _Service:
    """How long a consumer took, by its log alone. What answers a delivery has its `attempts`."""

    def __init__(self) -> None:
        self.open = tuple(np.empty(0, dtype=np.int64) for _ in range(4))
        """channel, message, attempts and ts of what was delivered and not answered."""
        self.answers: list[tuple[Ints, ...]] = []
        """The same, kind and window of what answers a delivery that is not known."""

    def add(self, records: Any, channel: Ints, window: Ints) -> Ints:
        """The latency of each record, in ns; -1 where it is no FIN, or its DELIVER is not known."""
        kept = len(self.open[0])
        own = (channel, *(records[name].astype(np.int64) for name in _SERVED))
        channel, message, attempts, ts = map(np.concatenate, zip(self.open, own, strict=True))
        kind = np.concatenate([np.full(kept, int(Kind.DELIVER)), records["kind"]])
        order = np.lexsort((attempts, message, channel))  # stable
        same = np.zeros(len(order), dtype=bool)
        same[1:] = np.diff(channel[order]) == 0
        for each in (message, attempts):
            same[1:] &= np.diff(each[order]) == 0
        at, before = order[same], order[np.append(same[1:], False)]
        ended = (kind[at] == Kind.FIN) & (kind[before] == Kind.DELIVER)
        took = np.full(len(order), -1)
        took[at[ended]] = ts[at[ended]] - ts[before[ended]]
        first = np.sort(order[~same])
        first = first[kind[first] != Kind.DELIVER]
        if len(first):
            told = (channel, message, attempts, ts, kind.astype(np.int64))
            self.answers.append((*(each[first] for each in told), window[first - kept]))
        open_end = kind == Kind.DELIVER
        open_end[before] = False
        left = np.flatnonzero(open_end)[-_UNDER_WAY:]
        self.open = (channel[left], message[left], attempts[left], ts[left])
        return took[kept:]


class Partials:
    """A row per window and channel, with the histograms of the latencies.

    Of a piece of a log also a row per channel with `open`: message, attempts and ts of each
    delivery that it does not answer, and `answers`: the same, kind and window of each answer to a
    delivery that it does not have.
    """

    COLUMNS = (
        *WINDOW_COLUMNS,
        *numbers(*COUNTS, "max_attempts", *LEFT_OUT),
        *numbers(*(f"{measure}{name}" for measure in MEASURES for name in _FIGURES)),
        *(field.with_name(f"{measure}{field.name}") for measure in MEASURES for field in HISTOGRAM),
        pa.field("log_id", pa.string()),
        *numbers("part"),
        *(pa.field(name, pa.list_(pa.int64())) for name in ("open", "answers")),
    )
    BY_FILE = True
    FIELDS = ("ts", "ref_ts", "commit_seq", "kind", "attempts", "peer")

    def __init__(self, reader: LogReader, window_ns: int) -> None:
        self._reader = reader
        self._window_ns = window_ns
        self._buffer = Buffer()
        self._service = _Service()
        self._left_out = dict.fromkeys(LEFT_OUT, 0)

    def _latencies(self, records: Any, channel: Ints, window: Ints) -> dict[str, Ints]:
        """Each measure, in ns; -1 where there is none. What is left out is that of a FIN."""
        finished = records["kind"] == Kind.FIN
        sent = records["ref_ts"].astype(np.int64)
        latency = records["ts"].astype(np.int64) - sent
        unknown = sent == 0
        foreign = ~unknown & ~self._reader.comparable(records)
        negative = ~unknown & ~foreign & (latency < 0)
        for name, which in zip(LEFT_OUT, (negative, unknown, foreign), strict=True):
            self._left_out[name] += int(np.count_nonzero(finished & which))
        since = np.where(unknown | foreign | negative, -1, latency)
        first = (records["kind"] == Kind.DELIVER) & (records["attempts"] == 1)
        return {
            "": np.where(finished, since, -1),
            "wait_": np.where(first, since, -1),
            "service_": self._service.add(records, channel, window),
        }

    def add(self, chunk: Chunk) -> Iterator[Mapping[str, Any]]:
        which = np.flatnonzero((chunk.channel >= 0) & np.isin(chunk.records["kind"], _KINDS))
        if len(which) == 0:
            return
        records, channel = chunk.records[which], chunk.channel[which]
        window = window_of(chunk, which, self._window_ns)
        full = self._buffer.add(
            window=window,
            channel=channel,
            kind=records["kind"].astype(np.int64),
            attempts=records["attempts"].astype(np.int64),
            **self._latencies(records, channel, window),
        )
        if full:
            yield from self._put_out()

    def _put_out(self) -> Iterator[Mapping[str, Any]]:
        columns = self._buffer.take()
        if not columns:
            return
        windows, at = dense(columns["window"])
        slot = at * len(self._reader.channels) + columns["channel"]
        kind = columns["kind"]
        attempts = np.where(kind == Kind.FIN, columns["attempts"], 0)
        key, figures = reduce_by(
            slot,
            delivered=(np.add, (kind == Kind.DELIVER).astype(np.int64)),
            finished=(np.add, (kind == Kind.FIN).astype(np.int64)),
            requeued=(np.add, (kind == Kind.REQ).astype(np.int64)),
            timed_out=(np.add, (kind == Kind.TIMEOUT).astype(np.int64)),
            sum_attempts=(np.add, attempts),
            max_attempts=(np.maximum, attempts),
        )
        for measure in MEASURES:
            figures |= _timed(measure, key, slot, columns[measure])
        yield self._keys(key, windows) | figures

    def _keys(self, slot: Any, windows: Any) -> dict[str, Any]:
        count = len(self._reader.channels)
        return {
            **place(self._reader),
            **channel_columns(self._reader, slot % count),
            "window": windows[slot // count],
        }

    def _at_the_ends(self) -> Iterator[Mapping[str, Any]]:
        log = self._reader.log
        answers = [np.concatenate(each) for each in zip(*self._service.answers, strict=True)]
        found = {"open": self._service.open, "answers": answers or [np.empty(0, dtype=np.int64)]}
        channels = np.unique(np.concatenate([columns[0] for columns in found.values()]))
        if len(channels) == 0:
            return
        told: dict[str, list[Any]] = {
            name: [
                np.stack([each[columns[0] == channel] for each in columns[1:]], axis=1).ravel()
                if len(columns[0])
                else []
                for channel in channels
            ]
            for name, columns in found.items()
        }
        yield {
            **place(self._reader),
            **channel_columns(self._reader, channels),
            "log_id": log.log_id,
            "part": log.files[0].part,
            **{name: pa.array(each, pa.list_(pa.int64())) for name, each in told.items()},
        }

    def finish(self) -> Iterator[Mapping[str, Any]]:
        yield from self._put_out()
        if self._reader.log.is_piece:
            yield from self._at_the_ends()
        if any(self._left_out.values()):
            yield {name: [count] for name, count in self._left_out.items()}


def _timed(measure: str, owners: Ints, owner: Ints, latency: Ints) -> dict[str, Any]:
    """The columns of a measure, of each owner; `latency` is -1 where there is none."""
    timed = latency >= 0
    _, figures = reduce_by(
        owner,
        timed=(np.add, timed.astype(np.int64)),
        sum_ns=(np.add, np.where(timed, latency, 0)),
        min_ns=(np.minimum, np.where(timed, latency, _NEVER)),
        max_ns=(np.maximum, latency),
    )
    figures |= histograms(owners, owner[timed], latency[timed])
    return {f"{measure}{name}": column for name, column in figures.items() if name != "n"}


def _with_topics(rows: pa.Table) -> pa.Table:
    """Two columns of TOPIC:CHANNEL."""
    names = rows["channel"].combine_chunks().dictionary_encode()
    parts = [name.partition(":") for name in names.dictionary.to_pylist()]
    topics, channels = (
        pa.array([part[at] for part in parts], pa.string()).take(names.indices) for at in (0, 2)
    )
    place = rows.schema.get_field_index("channel")
    return rows.set_column(place, "channel", channels).append_column("topic", topics)


def _of_several_pieces(pieces: list[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    """The window of each FIN that a later piece has than its delivery, and how long it took;
    `pieces` are those of one log and channel, in order.
    """
    waiting: dict[tuple[int, int], int] = {}
    for piece in pieces:
        told = np.array(piece["answers"], dtype=np.int64).reshape(-1, 5).tolist()
        for message, attempts, ts, kind, window in told:
            delivered = waiting.pop((message, attempts), None)
            if delivered is not None and kind == Kind.FIN and ts >= delivered:
                yield window, ts - delivered
        left = np.array(piece["open"], dtype=np.int64).reshape(-1, 3).tolist()
        waiting |= {(message, attempts): ts for message, attempts, ts in left}
        for key in list(waiting)[: max(0, len(waiting) - _UNDER_WAY)]:
            del waiting[key]


def _with_late(rows: pa.Table) -> pa.Table:
    """The rows of windows, and one for each FIN whose delivery another piece has."""
    of_piece = rows["log_id"].is_valid()
    names = ("host", "boot_id", *_LOGGED, "log_id")
    pieces: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    columns = rows.select([*names, "part", "open", "answers"]).filter(of_piece)
    for row in sorted(columns.to_pylist(), key=lambda row: int(row["part"])):
        pieces.setdefault(tuple(row[name] for name in names), []).append(row)
    found = []
    for key, own in pieces.items():
        for window, took in _of_several_pieces(own):
            figures: dict[str, Any] = {"timed": 1, "sum_ns": took, "min_ns": took, "max_ns": took}
            figures |= {"buckets": bucket([took]).tolist(), "counts": [1]}
            late = {f"service_{name}": value for name, value in figures.items()}
            keys = dict(zip(names[:-1], key, strict=False))
            found.append(keys | {"window": window, "n": 0} | dict.fromkeys(COUNTS, 0) | late)
    others = rows.filter(pc.invert(of_piece))
    return pa.concat_tables([others, pa.Table.from_pylist(found, rows.schema)])


def table(rows: pa.Table, *keys: str) -> pa.Table:
    """One row per key with all figures, of all rows of some channels; the quantiles are null where
    nothing was timed.
    """
    rows = _with_topics(_with_late(rows))
    how = dict.fromkeys(COUNTS, "sum") | {"max_attempts": "max"}
    result = grouped(rows, keys, how)
    for measure in MEASURES:
        names = [*_FIGURES, *(field.name for field in HISTOGRAM)]
        own = rows.select([*keys, "n", *(f"{measure}{name}" for name in names)])
        own = own.rename_columns([*keys, "n", *names])
        found = summarised(only_timed(own), keys, _FIGURES)
        for name in (*_FIGURES, *QUANTILES):
            result = result.append_column(f"{measure}{name}", found[name])
    return result


def _row(found: Mapping[str, Any]) -> dict[str, Any]:
    names = (*KEYS, "finished", "min_ns", *QUANTILES, "max_ns")
    finished = found["finished"]
    row = {name: found[name] for name in names} | {"mean_ns": _mean(found, "")}
    row |= {
        "mean_attempts": found["sum_attempts"] / finished if finished else None,
        "max_attempts": found["max_attempts"],
        "requeued": found["requeued"],
        "timed_out": found["timed_out"],
        "delivered": found["delivered"],
    }
    for measure in MEASURES[1:]:
        row |= {f"{measure}{name}": found[f"{measure}{name}"] for name in (*QUANTILES, "max_ns")}
        row[f"{measure}mean_ns"] = _mean(found, measure)
    return row


def _mean(found: Mapping[str, Any], measure: str) -> float | None:
    timed = found[f"{measure}timed"]
    return found[f"{measure}sum_ns"] / timed if timed else None


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """What people look at first."""
    names = ("topic", "channel", "finished", "p50_ns", "p99_ns", "max_ns")
    parts = (f"{measure}{name}_ns" for measure in MEASURES[1:] for name in ("p50", "p99"))
    return {name: row[name] for name in (*names, *parts, "max_attempts", "requeued", "timed_out")}


def whole(engine: Engine, survey: Survey) -> list[dict[str, Any]]:
    """The rows of `run`, and nothing else."""
    found = engine.load("e2e", survey, window_ns=nanoseconds(WINDOW_S))
    return [
        _row(row)
        for row in summed(found, _LOGGED, lambda rows: table(rows, *KEYS), KEYS).table.to_pylist()
    ]


def run(engine: Engine, survey: Survey, out: Directory, *, window: float = WINDOW_S) -> JobResult:
    """Rows: engine, database, topic, channel, finished, min_ns, the quantiles, max_ns, mean_ns,
    mean_attempts and max_attempts (of what was finished), requeued, timed_out, delivered, and the
    quantiles, max_ns and mean_ns of wait and service. By host, boot and window they are in `e2e/`
    in `out`.
    """
    with engine.load("e2e", survey, window_ns=nanoseconds(window)) as partials:
        found, _ = summed(partials, _LOGGED, lambda rows: table(rows, *_WINDOW), _WINDOW)
        whole, others = summed(partials, _LOGGED, lambda rows: table(rows, *KEYS), KEYS)
    write_table(out / "e2e", with_time(found))
    rows = [_row(row) for row in whole.to_pylist()]
    totals = {name: pc.sum(others[name]).as_py() or 0 for name in LEFT_OUT}
    worst = sorted(rows, key=lambda row: -(row["p99_ns"] or 0))
    shown = [_shown(row) for row in worst]
    return JobResult(rows, reports_of(others, survey), totals=totals, shown=shown)
