"""One HTML page about a run: whether everything was delivered; latency by percentile, over time
and channel by time; when connections came and went; topics; and what processes were woken for.

Runs latency, audit, e2e and wakeups, and leaves their tables in ``--out`` beside ``report.html``;
the exit status is that of the audit. What is over time is drawn for each host and boot by itself.
With ``--before`` an earlier run is set beside this one, as `compare` does, and a figure beyond
``--threshold`` is a violation.

All of these, and the timeline, see the logs in one pass. An archive does not say beforehand how
wide the windows of its timeline should be, so that takes a second one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_jobs.directory import Directory
from spark_jobs.engine.base import Engine, Found, Shared, summed
from spark_jobs.engine.tables import read_table, write_rows
from spark_jobs.errors import CannotRunError
from spark_jobs.figures import windows
from spark_jobs.figures.hgrm import EVERYTHING, busiest, distributions, steps
from spark_jobs.figures.histogram import midpoint
from spark_jobs.figures.quantiles import by_nearest_rank, grouped
from spark_jobs.figures.windows import nanoseconds, numbers
from spark_jobs.jobs import audit, compare, e2e, latency, timeline, wakeups
from spark_jobs.logs.find import span
from spark_jobs.logs.model import Chunk, Log, Survey
from spark_jobs.logs.quality import FileReport
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import Kind
from spark_jobs.output import versions
from spark_jobs.report.html import (
    NOT_CLOSED,
    Lane,
    Place,
    depth_plot,
    facts,
    heat_map,
    lanes_plot,
    page,
    percentile_plot,
    table,
    timeline_plot,
)
from spark_jobs.report.svg import duration, plain
from spark_jobs.result import JobResult

Curve = list[tuple[float, float]]

_BINS = 200
_CURVES, _ROWS, _PLACES = 7, 40, 8
_LISTED = 200
_NAMED = 5
_CHANNEL = ("engine", "database", "channel")
_PLACE = ("host", "boot_id")
_LANES, _GAPS, _DEPTHS = 60, 200, 7
_TIMELINE = ("kind", "n", "bytes", "timed", "min_ns", "max_ns", "buckets", "counts")
"""What `timeline.table` takes beside the keys."""
_LATENCIES = {
    "channel": "channel",
    "pid": "pid",
    "host": "host",
    "n": "messages",
    "rate_per_s": "per second",
    "min_ns": "min",
    "p50_ns": "p50",
    "p90_ns": "p90",
    "p99_ns": "p99",
    "p999_ns": "p99.9",
    "max_ns": "max",
}
_WAKES = {
    "wake": "it was woken by",
    **{name: title for name, title in _LATENCIES.items() if name == "n" or name.endswith("_ns")},
}
_WOKEN = {
    "signal": "a signal",
    "fd": "its descriptor",
    "timer": "a timer",
    "neighbour": "a neighbour's death",
    "none": "nothing: it was awake",
}
_WAKEUPS = {
    "pid": "pid",
    "host": "host",
    "signals_sent": "signals sent",
    "wakes": "wake-ups",
    "useful_wakes": "useful",
    "useless_wakes": "useless",
    "messages_per_useful_wake": "messages per useful one",
    "wake_p50_ns": "commit to wake p50",
    "wake_p99_ns": "p99",
}
_TOPICS = {
    "topic": "topic",
    "channel": "channel",
    "finished": "finished",
    "unfinished": "not finished",
    "undelivered": "of these not delivered",
    "finished_twice": "finished twice",
    "delivered_after": "delivered after that",
    "p50_ns": "to the finish p50",
    "p99_ns": "p99",
    "wait_p50_ns": "waiting p50",
    "wait_p99_ns": "p99",
    "service_p50_ns": "service p50",
    "service_p99_ns": "p99",
    "mean_attempts": "attempts",
    "requeued": "requeued",
    "timed_out": "timed out",
}
_COMPARED = {
    "what": "of",
    "n_before": "messages before",
    "n_after": "after",
    "per_s_before": "per second before",
    "per_s_after": "after",
    "per_s_ratio": "times",
    **{
        column: title
        for name in ("p50", "p90", "p99", "p999", "max")
        for column, title in (
            (f"{name}_before_ns", f"{name.replace('p999', 'p99.9')} before"),
            (f"{name}_after_ns", "after"),
            (f"{name}_ratio", "times"),
        )
    },
}
_SCOPES = (compare.ALL, compare.WAKE, compare.CHANNEL)
_AUDIT = {
    name: name.replace("_", " ")
    for name in (
        "channel",
        "pid",
        "host",
        "expected",
        "distinct",
        "lost",
        "dup",
        "out_of_order",
        "corrupted",
        "unproven",
    )
}


class Partials:
    """One row per log, or piece of it: when it begins and ends by the wall clock, and when Gaps
    were announced.
    """

    COLUMNS = (
        *(pa.field(name, pa.string()) for name in ("host", "boot_id", "engine", "log_id")),
        *numbers("pid", "part", "first", "last"),
        pa.field("gaps", pa.list_(pa.int64())),
    )
    BY_FILE = True
    FIELDS = ("ts", "kind")

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._first, self._last = np.iinfo(np.int64).max, 0
        self._gaps: list[int] = []

    def add(self, chunk: Chunk) -> Iterator[Mapping[str, Any]]:
        if len(chunk.channel):
            at = chunk.signed("ts") + chunk.clock_ns
            self._first = min(self._first, int(at.min()))
            self._last = max(self._last, int(at.max()))
            room = _GAPS - len(self._gaps)
            self._gaps += at[chunk.kind == Kind.DROP][:room].tolist()
        yield from ()

    def finish(self) -> Iterator[Mapping[str, Any]]:
        if self._last:
            log = self._reader.log
            found = {"pid": [log.pid], "first": [self._first], "last": [self._last]}
            found["part"] = [log.files[0].part]
            gaps = pa.array([self._gaps], pa.list_(pa.int64()))
            yield windows.place(self._reader) | {"log_id": log.log_id, "gaps": gaps} | found


def _end(log: Log) -> str:
    """What became of a connection, as far as its log tells."""
    if log.closed:
        return "its last file is missing" if log.rotated else "closed"
    return "lives" if log.alive else NOT_CLOSED


def _of_logs(rows: pa.Table) -> pa.Table:
    """A row per log, from those of its pieces."""
    rows = rows.select([field.name for field in Partials.COLUMNS])
    found: dict[str, dict[str, Any]] = {}
    for row in sorted(rows.to_pylist(), key=lambda row: (row["log_id"], row["part"])):
        log = found.setdefault(row["log_id"], row)
        if log is not row:
            log["first"] = min(log["first"], row["first"])
            log["last"] = max(log["last"], row["last"])
            log["gaps"] = [*log["gaps"], *row["gaps"]][:_GAPS]
    return pa.Table.from_pylist(list(found.values()), rows.schema)


def _lanes(engine: Engine, survey: Survey) -> dict[tuple[str, str], list[Lane]]:
    """A lane for each process of a place; those that came first."""
    logs = {log.log_id: log for log in survey.logs}
    order = (*_PLACE, "first", "log_id")
    found = summed(engine.load("report", survey), (*_PLACE, "log_id"), _of_logs, order)
    processes: dict[tuple[str, str, int, int], list[dict[str, Any]]] = {}
    for row in found.table.to_pylist():
        key = (row["host"], row["boot_id"], row["pid"], logs[row["log_id"]].starttime)
        processes.setdefault(key, []).append(row)
    lanes: dict[tuple[str, str], list[Lane]] = {}
    for (host, boot, pid, _), rows in processes.items():
        spans = [(row["first"], row["last"]) for row in rows]
        gaps = sorted(at for row in rows for at in row["gaps"])[:_GAPS]
        end = _end_of_all([_end(logs[row["log_id"]]) for row in rows])
        name = f"pid {pid}" + (f", {len(rows)} connections" if len(rows) > 1 else "")
        lanes.setdefault((host, boot), []).append(Lane(name, spans, end, gaps))
    return lanes


def _end_of_all(ends: Sequence[str]) -> str:
    """What became of a process, from what became of its connections."""
    worst = (NOT_CLOSED, "its last file is missing", "lives", "closed")
    return min(ends, key=worst.index)


def _curve(buckets: Any, counts: Any) -> list[tuple[float, float]]:
    values = midpoint(buckets)
    return [(level, float(values[index])) for index, level, _ in steps(counts) if level < 1]


def _curves(counts: pa.Table, rows: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """Over all channels, and of the busiest."""
    chosen = busiest(rows, _CURVES)
    found = distributions(counts.filter(pc.equal(counts["wake"], "all")), chosen)
    curves: dict[str, Curve] = {}
    for key in (EVERYTHING, *chosen):
        if key in found:
            name = "all channels" if key == EVERYTHING else _distinct(key, curves)
            curves[name] = _curve(*found[key])
    return curves


def _distinct(key: Sequence[Any], taken: Mapping[str, Any]) -> str:
    """The channel's name, with its database and engine where that is needed to tell it apart."""
    channel = str(key[-1])
    return channel if channel not in taken else f"{channel} ({key[1]}, {key[0]})"


def _of_wake(counts: pa.Table, wake: str) -> Any:
    """Buckets and counts of all listeners."""
    return distributions(counts.filter(pc.equal(counts["wake"], wake)), ())[EVERYTHING]


def _by_wake(counts: pa.Table, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Over all listeners, a row for each of what ended the sleep; the slowest first."""
    found = []
    for wake in {row["wake"] for row in rows} - {"all"}:
        own = [row for row in rows if row["wake"] == wake]
        buckets, each = _of_wake(counts, wake)
        extremes = min(row["min_ns"] for row in own), max(row["max_ns"] for row in own)
        low, high = (np.array([value]) for value in extremes)
        quantiles = by_nearest_rank(np.zeros_like(buckets), buckets, each, low, high)
        figures = {name: int(value[0]) for name, value in quantiles}
        told = {"wake": wake, "n": sum(row["n"] for row in own)}
        found.append(told | {"min_ns": extremes[0], **figures, "max_ns": extremes[1]})
    return sorted(found, key=lambda row: (-row["p99_ns"], row["wake"]))


def _span_ns(lanes: Mapping[Any, Sequence[Lane]]) -> int:
    """The longest time of one place: gives the width of the windows to read."""
    spans = [
        max(lane.last_ns for lane in own) - min(lane.first_ns for lane in own)
        for own in lanes.values()
    ]
    return max(spans, default=10**9)


def _expected_width(survey: Survey) -> int | None:
    """The width of windows, before anything is read; None where that cannot be told."""
    places: dict[tuple[str, str], list[int]] = {}
    for log in survey.logs:
        known = span(log)
        if known is None:
            return None
        places.setdefault((log.host, log.boot_id), []).extend(known)
    return _width(max((max(each) - min(each) for each in places.values()), default=10**9))


def _width(span_ns: float) -> int:
    """A round width of which about `_BINS` make up the span."""
    wanted = max(span_ns / _BINS, 1e6)
    return next(
        int(width)
        for exponent in range(6, 19)
        for width in (10**exponent, 2 * 10**exponent, 5 * 10**exponent)
        if width >= wanted
    )


def _spans(rows: pa.Table) -> pa.Table:
    """The first and last window of each place, and how many records it has."""
    rows = rows.select([*_PLACE, "window", "n"])
    rows = rows.append_column("first", rows["window"]).append_column("last", rows["window"])
    return grouped(rows, _PLACE, {"first": "min", "last": "max", "n": "sum"})


def _places(engine: Engine, survey: Survey, window_ns: int) -> list[Place]:
    places = []
    with engine.load("timeline", survey, window_ns=window_ns) as partials:
        spans = summed(partials, _PLACE, _spans).table.to_pylist()
        for span in sorted(spans, key=lambda span: -span["n"])[:_PLACES]:
            length = span["last"] - span["first"] + window_ns
            width = window_ns * (-(-length // (window_ns * _BINS)))
            bins = (span["last"] - span["first"]) // width + 1
            places.append(Place(span["host"], span["boot_id"], span["first"], width, bins))
        if places:
            _fill(partials, places)
    return places


def _of_place(rows: pa.Table, place: Place) -> pa.Table:
    own = zip(_PLACE, (place.host, place.boot_id), strict=True)
    here = pc.and_(*(pc.equal(rows[name], value) for name, value in own))
    return rows if pc.all(here, min_count=0).as_py() else rows.filter(here)


def _binned(rows: pa.Table, place: Place) -> Iterator[pa.Table]:
    """`timeline.table` of the place by kind and bin; what was received by channel and bin; what
    topics published and finished by all three.
    """
    rows = _of_place(rows.select([*_PLACE, "window", *_CHANNEL, *_TIMELINE]), place)
    since = pc.subtract(rows["window"], place.start_ns)
    rows = rows.append_column("bin", pc.divide(since, place.width_ns))
    received = rows.filter(pc.equal(rows["kind"], "RECV"))
    of_topics = rows.filter(pc.is_in(rows["kind"], pa.array(["PUBLISH", "FIN"])))
    for keys, part in (
        (("kind", "bin"), rows),
        ((*_CHANNEL, "bin"), received),
        ((*_CHANNEL, "kind", "bin"), of_topics),
    ):
        found = timeline.table(part.select([*dict.fromkeys((*keys, *_TIMELINE))]), *keys)
        for name, value in zip(_PLACE, (place.host, place.boot_id), strict=True):
            column = pa.repeat(pa.scalar(value, pa.string()), found.num_rows)
            found = found.append_column(name, column)
        yield found


def _fill(partials: Found, places: Sequence[Place]) -> None:
    """Fills in what was received in each bin."""

    def how(rows: pa.Table) -> pa.Table:
        tables = [table for place in places for table in _binned(rows, place)]
        return pa.concat_tables(tables, promote_options="default")

    found = summed(partials, _PLACE, how, (*_PLACE, "kind", *_CHANNEL, "bin")).table
    for place in places:
        rows = _of_place(found, place)
        of_channel = pc.is_valid(rows["channel"])
        place.totals += rows.filter(pc.invert(of_channel)).to_pylist()
        cells = rows.filter(of_channel)
        _fill_depths(place, cells.filter(pc.is_valid(cells["kind"])).to_pylist())
        cells = cells.filter(pc.is_null(cells["kind"]))
        busy = grouped(cells, _CHANNEL, {"n": "sum"}).to_pylist()
        for channel in sorted(busy, key=lambda row: -row["n"])[:_ROWS]:
            key = [channel[name] for name in _CHANNEL]
            same = [pc.equal(cells[name], each) for name, each in zip(_CHANNEL, key, strict=True)]
            own = cells.filter(pc.and_(pc.and_(same[0], same[1]), same[2]))
            place.channels[_distinct(key, place.channels)] = [
                row for row in own.to_pylist() if row["p99_ns"] is not None
            ]


def _fill_depths(place: Place, rows: Sequence[Mapping[str, Any]]) -> None:
    """Fill in the depths of the busiest topics' channels: what each bin published and finished."""
    counts: dict[tuple[Any, ...], NDArray[np.int64]] = {}
    for row in rows:
        key = (row["kind"], *(row[name] for name in _CHANNEL))
        bins = counts.setdefault(key, np.zeros(place.bins, dtype=np.int64))
        bins[row["bin"]] += row["n"]
    finished = {key[1:]: bins for key, bins in counts.items() if key[0] == "FIN"}
    busy = sorted(finished, key=lambda key: (-finished[key].sum(), key))
    for key in busy[:_DEPTHS]:
        topic = (*key[:-1], key[-1].partition(":")[0])
        published = counts.get(("PUBLISH", *topic))
        if published is None:
            continue
        depth = np.cumsum(published - finished[key])
        depth -= min(int(depth.min()), 0)  # published before the logs begin
        name = _distinct(key, place.depths)
        place.depths[name] = list(enumerate(depth.tolist()))


def _counted(count: int, what: str, more: str = "s") -> str:
    return f"{count:,} {what}{more if count != 1 else ''}"


def _verdict(audited: JobResult) -> str:
    """In one sentence."""
    bad = list(filter(audit.is_violation, audited.rows))
    bad_topics = list(filter(audit.is_violation, audited.further["topics"]))
    unproven = sum(row["incomplete"] for row in audited.rows)
    if bad or bad_topics:
        found = [f"{_counted(len(bad), 'listener')} did not get what was owed"]
        again = f"in {_counted(len(bad_topics), 'channel')} of topics finished messages came again"
        said = " and ".join([*found * bool(bad), *[again] * bool(bad_topics)])
        how = "bad"
    elif not (audited.rows or audited.further["topics"]):
        said, how = "Nothing was delivered", "note"
    else:
        said, how = "Nothing that was owed is missing, doubled, out of order or changed", "good"
    left = f"; the logs of {_counted(unproven, 'listener')} are incomplete, and prove no loss"
    more = left * bool(unproven)
    return f'<p class="verdict {how}">{plain(said[0].upper() + said[1:] + more, 1000)}.</p>'


def _wall(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _head(
    survey: Survey, timed: JobResult, lanes: Mapping[Any, Sequence[Lane]], command: str
) -> str:
    """What was read, and of what."""
    every = [lane for each in lanes.values() for lane in each]
    records = sum(report.records for report in timed.reports)
    damaged = sum(report.damaged for report in timed.reports)
    clocks = {log.clock for log in survey.logs}
    hosts = {log.host for log in survey.logs}
    processes = {(log.host, log.boot_id, log.pid, log.starttime) for log in survey.logs}
    read = f"{_counted(records, 'record')} in {_counted(len(timed.reports), 'file')}"
    named = {
        "read": read + (f", of which {damaged:,} are damaged or gone" if damaged else ""),
        "of": f"{_counted(len(survey.logs), 'connection')} of "
        f"{_counted(len(processes), 'process', 'es')} on {_counted(len(hosts), 'host')} with "
        f"{_counted(len(clocks), 'clock')}",
        "engines": ", ".join(sorted({log.engine for log in survey.logs})),
    }
    if every:
        first, last = min(each.first_ns for each in every), max(each.last_ns for each in every)
        named["time"] = f"{_wall(first)} to {_wall(last)} UTC, {duration(last - first)}"
    if command:
        named["command"] = command
    named["versions"] = ", ".join(f"{name} {version}" for name, version in versions().items())
    return facts(named)


def _shortened(rows: Sequence[Mapping[str, Any]]) -> str:
    over = len(rows) - _LISTED
    return f'<p class="note">{over} more are in the Parquet tables.</p>' if over > 0 else ""


def _topic_rows(audited: JobResult, finished: JobResult) -> list[dict[str, Any]]:
    """What the audit and e2e know of each channel of a topic, the worst first."""
    key = ("engine", "database", "topic", "channel")
    figures = {tuple(row[name] for name in key): row for row in finished.rows}
    empty = dict.fromkeys(_TOPICS)
    return [
        empty | figures.get(tuple(row[name] for name in key), {}) | row
        for row in audited.further["topics"]
    ]


def _changed(stored: Sequence[Mapping[str, Any]], threshold: float | None) -> tuple[str, bool]:
    """In one sentence what has changed, as HTML, and whether something is beyond the threshold."""
    rows: dict[str, list[dict[str, Any]]] = {scope: [] for scope in _SCOPES}
    for each in stored:
        rows[each["scope"]].append(compare.compared(each, threshold))
    channels = rows[compare.CHANNEL]
    counts = {
        "gone": sum(not row["n_after"] for row in channels),
        "new": sum(not row["n_before"] for row in channels),
    }
    moved = [
        f"{_counted(count, 'channel')} {'is' if count == 1 else 'are'} {what}"
        for what, count in counts.items()
        if count
    ]
    note = f'<p class="note">{plain(", ".join(moved))}</p>' if moved else ""
    both = [row for row in rows[compare.ALL] if row["p99_ratio"] is not None]
    if not both:
        return f'<p class="verdict note">Nothing was received in both runs.</p>{note}', False
    now, was = (duration(both[0][f"p99_{side}_ns"]) for side in ("after", "before"))
    said = [f"p99 over all is {now}, and was {was}, {both[0]['p99_ratio']:.2f} times"]
    in_both = [row for row in channels if row["p99_ratio"] is not None]
    if len(in_both) > 1:
        most = max(in_both, key=lambda row: row["p99_ratio"])
        said.append(f"largest is the ratio of {most['channel']}, {most['p99_ratio']:.2f}")
    worse = [row for row in (*rows[compare.ALL], *channels) if compare.is_worse(row)]
    how = "note" if threshold is None else "bad" if worse else "good"
    if threshold is not None:
        named = [row["channel"] or "all together" for row in worse]
        listed = ", ".join(
            [*named[:_NAMED], *([f"{len(named) - _NAMED} more"] * (len(named) > _NAMED))]
        )
        limit = f"beyond {threshold:g} times what it was"
        said.append(f"a percentile is {limit} of {listed}" if worse else f"nothing is {limit}")
    return f'<p class="verdict {how}">{plain("; ".join(said), 2000)}.</p>{note}', bool(worse)


def _compared_rows(stored: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Everything, then by what ended the sleep, then channels, those first whose p99 has grown
    most.
    """
    found: dict[str, list[dict[str, Any]]] = {scope: [] for scope in _SCOPES}
    several = len({row["database"] for row in stored if row["scope"] == compare.CHANNEL}) > 1
    for each in stored:
        name = str(each["channel"])
        what = {compare.ALL: "all", compare.WAKE: f"woken by {_WOKEN.get(name, name)}"}.get(
            each["scope"], name
        )
        if several and each["scope"] == compare.CHANNEL:
            what += f" ({each['database']})"
        found[each["scope"]].append({"what": what} | compare.compared(each, None))
    found[compare.CHANNEL].sort(key=lambda row: -(row["p99_ratio"] or 0))
    return [row for scope in _SCOPES for row in found[scope]]


def _whole_curve(place: Directory) -> Curve:
    counts = read_table(place / "latency_hist")
    found = distributions(counts.filter(pc.equal(counts["wake"], "all")), ())
    return _curve(*found[EVERYTHING]) if EVERYTHING in found else []


def _beside(
    engine: Engine, before: compare.Side, out: Directory, threshold: float | None
) -> tuple[str, list[FileReport], bool]:
    """What is told of an earlier run beside this one, whose results are in `out`: HTML, its files
    if they were read, and whether something is beyond the threshold.
    """
    earlier, reports = compare.before_of(engine, before, out)
    stored = compare.stored(earlier, out, _SCOPES)
    write_rows(
        out / "compare", [row for row in stored if row["scope"] != compare.WAKE], compare.TABLE
    )
    said, worse = _changed(stored, threshold)
    curves = {"before": _whole_curve(earlier), "after": _whole_curve(out)}
    plot = percentile_plot({name: each for name, each in curves.items() if each})
    rows = _compared_rows(stored)
    damaged = sum(report.damaged for report in reports)
    note = f'<p class="note">{damaged:,} records of the run before are damaged or gone.</p>'
    listed = table(rows[:_LISTED], _COMPARED) + _shortened(rows)
    return said + plot + listed + note * bool(damaged), reports, worse


def _plots(
    curves: Mapping[str, Curve], by_wake: Mapping[str, Curve], places: Sequence[Place]
) -> list[tuple[str, str]]:
    sections = []
    if curves:
        sections.append(("Latency by percentile", percentile_plot(curves)))
    if by_wake:
        title = "latency by what ended the sleep"
        sections.append((title.capitalize(), percentile_plot(by_wake, title)))
    for place in places:
        where = f"{place.host}, boot {place.boot_id[:8]}"
        sections.append((f"Over time: {where}", timeline_plot(place)))
        if any(place.channels.values()):
            sections.append((f"p99 by channel and time: {where}", heat_map(place)))
        if place.depths:
            sections.append((f"Topics, messages not finished: {where}", depth_plot(place)))
        if place.lanes:
            sections.append((f"Processes: {where}", lanes_plot(place)))
    return sections


def _tables(
    timed: JobResult,
    woken: JobResult,
    audited: JobResult,
    finished: JobResult,
    by_wake: Sequence[Mapping[str, Any]],
) -> list[tuple[str, str]]:
    slowest = sorted((r for r in timed.rows if r["wake"] == "all"), key=lambda r: -r["p99_ns"])
    broken = sorted(audited.rows, key=lambda row: not audit.is_violation(row))
    sections = []
    if slowest:
        left_out = {name: count for name, count in timed.totals.items() if count}
        note = f'<p class="note">left out: {plain(str(left_out))}</p>' if left_out else ""
        listed = table(slowest[:_LISTED], _LATENCIES) + _shortened(slowest) + note
        sections.append(("Slowest listeners", listed))
        named = [dict(row) | {"wake": _WOKEN.get(row["wake"], row["wake"])} for row in by_wake]
        sections.append(("Percentiles by what ended the sleep", table(named, _WAKES)))
    of_topics = _topic_rows(audited, finished)
    if of_topics:
        sections.append(("Topics", table(of_topics[:_LISTED], _TOPICS) + _shortened(of_topics)))
    if broken:
        sections.append(("Delivery", table(broken[:_LISTED], _AUDIT) + _shortened(broken)))
    ratio = woken.totals["signals_per_useful_wake"]
    told = "unknown" if ratio is None else f"{ratio:.3f}"
    listed = table(woken.rows[:_LISTED], _WAKEUPS) + _shortened(woken.rows)
    sections.append(("Wake-ups", f"<p>Signals per useful wake-up: {told}</p>{listed}"))
    damaged = [report.as_json() for report in timed.reports if report.damaged]
    if damaged:
        columns = {"file": "file", "records": "whole records", "damaged": "lost", "problems": "why"}
        sections.append(("Damaged logs", table(damaged[:_LISTED], columns) + _shortened(damaged)))
    return sections


def run(
    engine: Engine,
    survey: Survey,
    out: Directory,
    *,
    command: str = "",
    before: compare.Side | None = None,
    threshold: float | None = None,
) -> JobResult:
    """Rows: name, path; of what was written for people to look at. `command`: what to say on the
    page that it was made with. `before`: an earlier run; `compare/` in `out` then has both.

    Raises CannotRunError for a threshold without `before`, or that is no ratio.
    """
    if compare.checked(threshold) is not None and before is None:
        raise CannotRunError("--threshold of a report needs --before")
    width = _expected_width(survey)
    jobs: dict[str, dict[str, Any]] = {
        **{name: {} for name in ("latency", "audit", "wakeups", "report")},
        "e2e": {"window_ns": nanoseconds(e2e.WINDOW_S)},
        **({} if width is None else {"timeline": {"window_ns": width}}),
    }
    with engine.load_all(jobs, survey) as found:
        shared = Shared(engine, jobs, survey, found)
        timed = latency.run(shared, survey, out, topics=False)
        audited = audit.run(shared, survey, out)
        woken = wakeups.run(shared, survey, out)
        finished = e2e.run(shared, survey, out)
        lanes = _lanes(shared, survey)
        places = _places(shared, survey, width or _width(_span_ns(lanes)))
    for place in places:
        place.lanes = lanes.get((place.host, place.boot_id), [])[:_LANES]
    counts = read_table(out / "latency_hist")
    head = _verdict(audited) + _head(survey, timed, lanes, command)
    sections, reports, worse = [], list(timed.reports), False
    if before is not None:
        told, read, worse = _beside(engine, before, out, threshold)
        sections.append(("Before and after", told))
        reports += read
    by_wake = _by_wake(counts, timed.rows)
    of_wakes = {
        _WOKEN.get(row["wake"], row["wake"]): _curve(*_of_wake(counts, row["wake"]))
        for row in by_wake
    }
    sections += _plots(_curves(counts, timed.rows), of_wakes, places)
    sections += _tables(timed, woken, audited, finished, by_wake)
    target = out / "report.html"
    target.write_text(page("pynotify latency report", head, sections), encoding="utf-8")
    rows = [{"name": "report", "path": str(target)}]
    rows += [
        {"name": "hgrm", "path": str(path)} for path in sorted((out / "hgrm").iterdir(), key=str)
    ]
    return JobResult(rows, reports, audited.violation or worse, audited.totals)
