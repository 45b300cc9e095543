"""The report as one HTML page: tables and plots, nothing from outside, every name escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from spark_jobs.report.assets import POLICY, SCRIPT, STYLE
from spark_jobs.report.svg import (
    BOTTOM,
    COLOURS,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    curve,
    duration,
    durations,
    frame,
    heat,
    horizontal_axis,
    legend,
    plain,
    text,
    vertical_axis,
    window,
)

_PERCENTILES = {0.0: "0", 0.5: "50", 0.9: "90", 0.99: "99", 0.999: "99.9", 0.9999: "99.99"}
_ROW_HEIGHT = 16
NOT_CLOSED: Final = "not closed"
"""A process was killed, or is another host's: that may live."""


@dataclass(frozen=True)
class Lane:
    """One process: its connections, each from its first to its last record, in ns of the wall
    clock; `end` is what became of it, and `gaps` are when it was told that messages are missing.
    """

    name: str
    spans: Sequence[tuple[int, int]]
    end: str
    gaps: Sequence[int] = ()

    @property
    def first_ns(self) -> int:
        return min(first for first, _ in self.spans)

    @property
    def last_ns(self) -> int:
        return max(last for _, last in self.spans)


@dataclass
class Place:
    """What happened under one clock: `bins` of `width_ns` from `start_ns` of the wall clock."""

    host: str
    boot_id: str
    start_ns: int
    width_ns: int
    bins: int
    totals: list[Mapping[str, Any]] = field(default_factory=list)
    """kind, bin, n, and of RECV the quantiles."""
    channels: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    """By channel, the busiest first: bin, n, p99_ns."""
    depths: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """By topic and channel: at the end of which bin how many messages were not finished."""
    lanes: list[Lane] = field(default_factory=list)

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.bins * self.width_ns


def _time(ns: int) -> str:
    at = datetime.fromtimestamp(ns / 1e9, UTC)
    return at.strftime("%H:%M:%S.%f")[:-3] if ns % 10**9 else at.strftime("%H:%M:%S")


def _cell(name: str, value: object) -> str:
    """With the number itself, for sorting."""
    if value is None:
        return "<td>&ndash;</td>"
    if not isinstance(value, int | float):
        return f"<td>{plain(str(value))}</td>"
    if name.endswith("_ns"):
        shown = duration(value)
    elif name == "pid":
        shown = str(value)
    else:
        shown = f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
    return f'<td data-value="{float(value):.17g}">{plain(shown)}</td>'


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """`columns`: name in the rows -> heading; names that end in _ns are latencies."""
    head = "".join(f"<th>{plain(title)}</th>" for title in columns.values())
    lines = (f"<tr>{''.join(_cell(name, row[name]) for name in columns)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def facts(named: Mapping[str, str]) -> str:
    """A list of names and what they are."""
    lines = (
        f"<dt>{plain(name)}</dt><dd>{plain(value, 1000)}</dd>" for name, value in named.items()
    )
    return f"<dl>{''.join(lines)}</dl>"


def percentile_plot(
    curves: Mapping[str, Sequence[tuple[float, float]]], label: str = "latency by percentile"
) -> str:
    """Latency by percentile: for each name (percentile from 0 to below 1, ns) in order."""
    every = [value for points in curves.values() for _, value in points]
    highest = max((p for points in curves.values() for p, _ in points), default=0.9)
    nines = max(1.0, -math.log10(1 - highest))
    across = Axis(0.0, nines, LEFT, WIDTH - RIGHT)
    up = durations(every)
    marks = {-math.log10(1 - p): label for p, label in _PERCENTILES.items()}
    marks = {value: label for value, label in marks.items() if value <= nines}
    parts = vertical_axis(up, {value: duration(value) for value in up.ticks()})
    parts += horizontal_axis(across, marks, "percentile", HEIGHT - BOTTOM)
    for i, points in enumerate(curves.values()):
        pixels = [(across.at(-math.log10(1 - p)), up.at(value)) for p, value in points]
        if pixels:  # of one value there is no curve
            parts.append(curve(pixels, COLOURS[i % len(COLOURS)]))
    return frame(label, [*parts, *legend(list(curves))])


def _time_axis(place: Place) -> tuple[Axis, dict[float, str]]:
    across = Axis(0, max(place.bins, 1), LEFT, WIDTH - RIGHT)
    every = max(1, math.ceil(place.bins / 6))
    starts = range(0, place.bins, every)
    return across, {i: _time(place.start_ns + i * place.width_ns) for i in starts}


def _zooms(place: Place, foot: float) -> str:
    """Attributes of a plot over time, for the page's script."""
    begin, end = place.start_ns / 1e6, place.end_ns / 1e6
    key = plain(f"{place.host} {place.boot_id}")
    return (
        f' class="zooms" data-place="{key}" data-begin="{begin!r}" data-end="{end!r}" '
        f'data-top="{TOP}" data-foot="{foot:.0f}"'
    )


def _runs(points: Sequence[tuple[int, float]]) -> list[list[tuple[int, float]]]:
    """Parts without a bin missing in between."""
    runs: list[list[tuple[int, float]]] = []
    for point in points:
        if not runs or point[0] != runs[-1][-1][0] + 1:
            runs.append([])
        runs[-1].append(point)
    return runs


def _curves(points: Sequence[tuple[int, float]], across: Axis, up: Axis, colour: str) -> list[str]:
    """Lines through values at the middles of bins. A bin without one has no line; a bin alone is a
    short one.
    """
    parts = []
    for run in _runs(points):
        pixels = [(across.at(i + 0.5), up.at(value)) for i, value in run]
        if len(run) == 1:
            i, value = run[0]
            pixels = [(across.at(i + 0.2), up.at(value)), (across.at(i + 0.8), up.at(value))]
        parts.append(curve(pixels, colour))
    return parts


def timeline_plot(place: Place) -> str:
    """Received per second as bars, and quantiles of the latency as curves, over time."""
    across, times = _time_axis(place)
    foot = HEIGHT - BOTTOM
    received = sorted((r for r in place.totals if r["kind"] == "RECV"), key=lambda r: r["bin"])
    quantiles = {"p50": "p50_ns", "p99": "p99_ns", "maximum": "max_ns"}
    timed = [row for row in received if row["p50_ns"] is not None]
    up = durations([row[name] for row in timed for name in quantiles.values()])
    parts = vertical_axis(up, {value: duration(value) for value in up.ticks()})
    parts += horizontal_axis(across, times, "wall clock, UTC", foot)
    rates = {row["bin"]: row["n"] * 1e9 / place.width_ns for row in received}
    bars = Axis(0, max(rates.values(), default=1), foot, TOP)
    wide = (across.end - across.start) / max(place.bins, 1)
    data = []
    for i, rate in rates.items():
        top = bars.at(rate)
        data.append(
            f'<rect x="{across.at(i):.1f}" y="{top:.1f}" width="{max(wide - 0.5, 0.5):.1f}" '
            f'height="{foot - top:.1f}" fill="#8884">'
            f"<title>{_time(place.start_ns + i * place.width_ns)} {rate:,.0f}/s</title></rect>"
        )
    for i, name in enumerate(quantiles.values()):
        data += _curves([(row["bin"], row[name]) for row in timed], across, up, COLOURS[i])
    parts += [window(data, HEIGHT), *legend(list(quantiles))]
    highest = max(rates.values(), default=0)
    parts.append(text(WIDTH - RIGHT + 12, TOP + 74, f"bars: up to {highest:,.0f}/s"))
    return frame("messages and latency over time", parts, more=_zooms(place, foot))


def depth_plot(place: Place) -> str:
    """Messages of topics that were published and not finished, over time."""
    across, times = _time_axis(place)
    foot = HEIGHT - BOTTOM
    most = max((depth for each in place.depths.values() for _, depth in each), default=1)
    up = Axis(0, max(most, 1), foot, TOP)
    parts = vertical_axis(up, {value: f"{value:,.0f}" for value in up.ticks()})
    parts += horizontal_axis(across, times, "wall clock, UTC", foot)
    data = []
    for i, points in enumerate(place.depths.values()):
        pixels = [(across.at(at + 1), up.at(depth)) for at, depth in points]
        data.append(curve(pixels, COLOURS[i % len(COLOURS)]))
    parts += [window(data, HEIGHT), *legend(list(place.depths))]
    return frame("messages not finished over time", parts, more=_zooms(place, foot))


def _across(place: Place, at_ns: int) -> float:
    """Where a time is; what is outside of the plot's is at its edge."""
    share = (at_ns - place.start_ns) / max(place.end_ns - place.start_ns, 1)
    return LEFT + min(max(share, 0.0), 1.0) * (WIDTH - RIGHT - LEFT)


def _mark(x: float, y: float, colour: str, title: str) -> str:
    """A line across a row; `title` is HTML."""
    path = f"M{x:.1f} {y}v{_ROW_HEIGHT}"
    return f'<path class="mark" stroke="{colour}" d="{path}"><title>{title}</title></path>'


def _cross(x: float, y: float, colour: str, title: str) -> str:
    """Where something ends before its time."""
    half = _ROW_HEIGHT / 2 - 2
    path = f"M{x - half:.1f} {y + 2}l{2 * half:.1f} {2 * half:.1f}m0 -{2 * half:.1f}"
    path += f"l-{2 * half:.1f} {2 * half:.1f}"
    return f'<path class="mark" stroke="{colour}" d="{path}"><title>{title}</title></path>'


def lanes_plot(place: Place) -> str:
    """Each process with its connections, from its first record to its last: its start, its death
    if it was killed, and its Gaps.
    """
    across, times = _time_axis(place)
    foot = TOP + _ROW_HEIGHT * len(place.lanes)
    parts = horizontal_axis(across, times, "wall clock, UTC", foot)
    data = []
    for i, lane in enumerate(place.lanes):
        y = TOP + _ROW_HEIGHT * i
        died = lane.end == NOT_CLOSED
        colour = COLOURS[1] if died else COLOURS[0]
        told = f"{plain(lane.name)}: {_time(lane.first_ns)} to {_time(lane.last_ns)}, {lane.end}"
        for first_ns, last_ns in lane.spans:
            first, last = _across(place, first_ns), _across(place, last_ns)
            data.append(
                f'<rect x="{first:.1f}" y="{y + 3}" width="{max(last - first, 1):.1f}" '
                f'height="{_ROW_HEIGHT - 6}" fill="{colour}" fill-opacity="0.6">'
                f"<title>{told}</title></rect>"
            )
        data.append(_mark(_across(place, lane.first_ns), y, colour, f"start, {told}"))
        if died:
            data.append(_cross(_across(place, lane.last_ns), y, colour, f"death, {told}"))
        for at in lane.gaps:
            data.append(_mark(_across(place, at), y, COLOURS[3], f"Gap at {_time(at)}"))
        label = text(WIDTH - RIGHT + 12, y + 12, plain(f"{lane.name}: {lane.end}", 28))
        parts.append(f"<g><title>{told}</title>{label}</g>")
    parts.append(window(data, foot))
    return frame("processes over time", parts, foot + BOTTOM, _zooms(place, foot))


def heat_map(place: Place) -> str:
    """p99 of each channel (down) over time (across)."""
    across, times = _time_axis(place)
    values = [row["p99_ns"] for rows in place.channels.values() for row in rows]
    low, high = (math.log10(max(f(values, default=1), 1)) for f in (min, max))
    foot = TOP + _ROW_HEIGHT * len(place.channels)
    wide = (across.end - across.start) / max(place.bins, 1)
    parts = horizontal_axis(across, times, "wall clock, UTC", foot)
    data = []
    for i, (name, rows) in enumerate(place.channels.items()):
        y = TOP + _ROW_HEIGHT * i
        label = text(WIDTH - RIGHT + 12, y + 12, plain(name, 26))
        parts.append(f"<g><title>{plain(name)}</title>{label}</g>")
        for row in rows:
            share = (math.log10(max(row["p99_ns"], 1)) - low) / ((high - low) or 1)
            data.append(
                f'<rect x="{across.at(row["bin"]):.1f}" y="{y}" width="{wide + 0.1:.1f}" '
                f'height="{_ROW_HEIGHT - 1}" fill="{heat(share)}">'
                f"<title>{plain(name, 60)}: {duration(row['p99_ns'])}, n {row['n']}</title></rect>"
            )
    parts += [window(data, foot), text(8, TOP + 12, duration(10**low))]
    for step in range(10):
        parts.append(
            f'<rect x="8" y="{TOP + 18 + 8 * step}" width="14" height="8" fill="{heat(step / 9)}"/>'
        )
    parts.append(text(8, TOP + 114, duration(10**high)))
    height = max(foot + BOTTOM, TOP + 124)
    return frame("p99 latency by channel and time", parts, height, _zooms(place, foot))


def page(title: str, head: str, sections: Sequence[tuple[str, str]]) -> str:
    """The document; headings are text, `head` and bodies are HTML."""
    body = "".join(f"<h2>{plain(heading)}</h2>\n{content}\n" for heading, content in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{plain(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><h1>{plain(title)}</h1>\n{head}\n{body}<script>{SCRIPT}</script></body></html>\n"
    )
