"""One HTML page about a run: latency by percentile, over time, and channel by time; who was woken
for what; and whether everything was delivered.

Runs latency, audit and wakeups, and leaves their tables in ``--out`` beside ``report.html``; the
exit status is that of the audit. What is over time is drawn for each host and boot by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.directory import Directory
from spark_jobs.engine.base import Engine, Found, summed
from spark_jobs.engine.tables import read_table
from spark_jobs.figures.hgrm import EVERYTHING, busiest, distributions, steps
from spark_jobs.figures.histogram import midpoint
from spark_jobs.figures.quantiles import grouped
from spark_jobs.jobs import audit, latency, timeline, wakeups
from spark_jobs.logs.model import Survey
from spark_jobs.report.html import Place, heat_map, page, percentile_plot, table, timeline_plot
from spark_jobs.report.svg import plain
from spark_jobs.result import JobResult

Curve = list[tuple[float, float]]

_BINS = 200
_CURVES, _ROWS, _PLACES = 7, 40, 8
_LISTED = 200
_CHANNEL = ("engine", "database", "channel")
_PLACE = ("host", "boot_id")
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


def _span_ns(rows: Sequence[Mapping[str, Any]]) -> int:
    """Longest run of one listener on one channel: gives the width of the windows to read."""
    spans = [(r["n"] - 1) * 1e9 / r["rate_per_s"] for r in rows if r["rate_per_s"]]
    return int(max(spans, default=1e9))


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
    """Of each place: its first and last window, and how many records it has."""
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
    return rows.filter(pc.and_(*(pc.equal(rows[name], value) for name, value in own)))


def _binned(rows: pa.Table, place: Place) -> Iterator[pa.Table]:
    """`timeline.table` of the place by kind and bin, and by channel and bin."""
    rows = _of_place(rows.select([*_PLACE, "window", *_CHANNEL, *_TIMELINE]), place)
    since = pc.subtract(rows["window"], place.start_ns)
    rows = rows.append_column("bin", pc.divide(since, place.width_ns))
    received = rows.filter(pc.equal(rows["kind"], "RECV"))
    for keys, part in ((("kind", "bin"), rows), ((*_CHANNEL, "bin"), received)):
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
        busy = grouped(cells, _CHANNEL, {"n": "sum"}).to_pylist()
        for channel in sorted(busy, key=lambda row: -row["n"])[:_ROWS]:
            key = [channel[name] for name in _CHANNEL]
            same = [pc.equal(cells[name], each) for name, each in zip(_CHANNEL, key, strict=True)]
            own = cells.filter(pc.and_(pc.and_(same[0], same[1]), same[2]))
            place.channels[_distinct(key, place.channels)] = [
                row for row in own.to_pylist() if row["p99_ns"] is not None
            ]


def _verdict(audited: JobResult) -> str:
    bad = [row for row in audited.rows if audit.is_violation(row)]
    if not audited.violation:
        return "<p>Nothing that was owed is missing, doubled, out of order or changed.</p>"
    return f'<p class="bad">{len(bad)} listeners were not delivered what they were owed.</p>'


def _shortened(rows: Sequence[Mapping[str, Any]]) -> str:
    over = len(rows) - _LISTED
    return f'<p class="note">{over} more are in the Parquet tables.</p>' if over > 0 else ""


def _sections(
    timed: JobResult,
    woken: JobResult,
    audited: JobResult,
    curves: Mapping[str, Curve],
    places: Sequence[Place],
) -> list[tuple[str, str]]:
    slowest = sorted((r for r in timed.rows if r["wake"] == "all"), key=lambda r: -r["p99_ns"])
    broken = sorted(audited.rows, key=lambda row: not audit.is_violation(row))
    sections = [("Delivery", _verdict(audited) + table(broken[:_LISTED], _AUDIT))]
    left_out = {name: count for name, count in timed.totals.items() if count}
    note = f'<p class="note">left out: {plain(str(left_out))}</p>' if left_out else ""
    if curves:
        listed = table(slowest[:_LISTED], _LATENCIES) + _shortened(slowest)
        sections.append(("Latency by percentile", percentile_plot(curves) + note))
        sections.append(("Slowest listeners", listed))
    for place in places:
        where = f"{place.host}, boot {place.boot_id}"
        sections.append((f"Over time: {where}", timeline_plot(place)))
        if any(place.channels.values()):
            sections.append((f"p99 by channel and time: {where}", heat_map(place)))
    ratio = woken.totals["signals_per_useful_wake"]
    told = "unknown" if ratio is None else f"{ratio:.3f}"
    listed = table(woken.rows[:_LISTED], _WAKEUPS) + _shortened(woken.rows)
    sections.append(("Wake-ups", f"<p>Signals per useful wake-up: {told}</p>{listed}"))
    damaged = [report.as_json() for report in timed.reports if report.damaged]
    if damaged:
        columns = {"file": "file", "records": "whole records", "damaged": "lost", "problems": "why"}
        sections.append(("Damaged logs", table(damaged[:_LISTED], columns) + _shortened(damaged)))
    return sections


def run(engine: Engine, survey: Survey, out: Directory) -> JobResult:
    """Rows: name, path; of what was written for people to look at."""
    timed = latency.run(engine, survey, out)
    audited = audit.run(engine, survey, out)
    woken = wakeups.run(engine, survey, out)
    places = _places(engine, survey, _width(_span_ns(timed.rows)))
    counts = read_table(out / "latency_hist")
    sections = _sections(timed, woken, audited, _curves(counts, timed.rows), places)
    target = out / "report.html"
    target.write_text(page("pynotify latency report", sections), encoding="utf-8")
    rows = [{"name": "report", "path": str(target)}]
    rows += [
        {"name": "hgrm", "path": str(path)} for path in sorted((out / "hgrm").iterdir(), key=str)
    ]
    return JobResult(rows, timed.reports, audited.violation, audited.totals)
