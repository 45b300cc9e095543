"""The report as one HTML page: tables and plots, nothing from outside, every name escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

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
)

_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.45 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em}
table{border-collapse:collapse;font-size:13px;margin:.6em 0}
td,th{padding:.15em .7em;text-align:right;border-bottom:1px solid #8884}
td:first-child,th:first-child{text-align:left}
svg{width:100%;height:auto;font:12px system-ui,sans-serif;fill:currentColor}
.grid{stroke:#8885;fill:none}.curve{fill:none;stroke-width:1.8}
.bad{color:#c33;font-weight:bold}.note{color:#888}
"""
_PERCENTILES = {0.0: "0", 0.5: "50", 0.9: "90", 0.99: "99", 0.999: "99.9", 0.9999: "99.99"}
_ROW_HEIGHT = 16


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


def _time(ns: int) -> str:
    at = datetime.fromtimestamp(ns / 1e9, UTC)
    return at.strftime("%H:%M:%S.%f")[:-3] if ns % 10**9 else at.strftime("%H:%M:%S")


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """`columns`: name in the rows -> heading; names that end in _ns are latencies."""
    head = "".join(f"<th>{plain(title)}</th>" for title in columns.values())
    lines = []
    for row in rows:
        cells = []
        for name in columns:
            value = row[name]
            if value is None:
                shown = "&ndash;"
            elif name.endswith("_ns"):
                shown = plain(duration(value))
            else:
                shown = plain(f"{value:,.2f}" if isinstance(value, float) else str(value))
            cells.append(f"<td>{shown}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def percentile_plot(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
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
        parts.append(curve(pixels, COLOURS[i % len(COLOURS)]))
    return frame("latency by percentile", [*parts, *legend(list(curves))])


def _time_axis(place: Place) -> tuple[Axis, dict[float, str]]:
    across = Axis(0, max(place.bins, 1), LEFT, WIDTH - RIGHT)
    every = max(1, math.ceil(place.bins / 6))
    starts = range(0, place.bins, every)
    return across, {i: _time(place.start_ns + i * place.width_ns) for i in starts}


def timeline_plot(place: Place) -> str:
    """Received per second as bars, and quantiles of the latency as curves, over time."""
    across, times = _time_axis(place)
    received = sorted((r for r in place.totals if r["kind"] == "RECV"), key=lambda r: r["bin"])
    quantiles = {"p50": "p50_ns", "p99": "p99_ns", "maximum": "max_ns"}
    timed = [row for row in received if row["p50_ns"] is not None]
    up = durations([row[name] for row in timed for name in quantiles.values()])
    parts = vertical_axis(up, {value: duration(value) for value in up.ticks()})
    parts += horizontal_axis(across, times, "wall clock, UTC", HEIGHT - BOTTOM)
    rates = {row["bin"]: row["n"] * 1e9 / place.width_ns for row in received}
    bars = Axis(0, max(rates.values(), default=1), HEIGHT - BOTTOM, TOP)
    wide = (across.end - across.start) / max(place.bins, 1)
    for i, rate in rates.items():
        top = bars.at(rate)
        parts.append(
            f'<rect x="{across.at(i):.1f}" y="{top:.1f}" width="{max(wide - 0.5, 0.5):.1f}" '
            f'height="{HEIGHT - BOTTOM - top:.1f}" fill="#8884">'
            f"<title>{_time(place.start_ns + i * place.width_ns)} {rate:,.0f}/s</title></rect>"
        )
    for i, name in enumerate(quantiles.values()):
        points = [(across.at(row["bin"] + 0.5), up.at(row[name])) for row in timed]
        if points:
            parts.append(curve(points, COLOURS[i]))
    parts += legend(list(quantiles))
    highest = max(rates.values(), default=0)
    parts.append(text(WIDTH - RIGHT + 12, TOP + 74, f"bars: up to {highest:,.0f}/s"))
    return frame("messages and latency over time", parts)


def heat_map(place: Place) -> str:
    """p99 of each channel (down) over time (across)."""
    across, times = _time_axis(place)
    values = [row["p99_ns"] for rows in place.channels.values() for row in rows]
    low, high = (math.log10(max(f(values, default=1), 1)) for f in (min, max))
    foot = TOP + _ROW_HEIGHT * len(place.channels)
    wide = (across.end - across.start) / max(place.bins, 1)
    parts = horizontal_axis(across, times, "wall clock, UTC", foot)
    for i, (name, rows) in enumerate(place.channels.items()):
        y = TOP + _ROW_HEIGHT * i
        label = text(WIDTH - RIGHT + 12, y + 12, plain(name, 26))
        parts.append(f"<g><title>{plain(name)}</title>{label}</g>")
        for row in rows:
            share = (math.log10(max(row["p99_ns"], 1)) - low) / ((high - low) or 1)
            parts.append(
                f'<rect x="{across.at(row["bin"]):.1f}" y="{y}" width="{wide + 0.1:.1f}" '
                f'height="{_ROW_HEIGHT - 1}" fill="{heat(share)}">'
                f"<title>{plain(name, 60)}: {duration(row['p99_ns'])}, n {row['n']}</title></rect>"
            )
    parts.append(text(8, TOP + 12, duration(10**low)))
    for step in range(10):
        parts.append(
            f'<rect x="8" y="{TOP + 18 + 8 * step}" width="14" height="8" fill="{heat(step / 9)}"/>'
        )
    parts.append(text(8, TOP + 114, duration(10**high)))
    height = max(foot + BOTTOM, TOP + 124)
    return frame("p99 latency by channel and time", parts, height)


def page(title: str, sections: Sequence[tuple[str, str]]) -> str:
    """The document; headings are text, bodies are HTML."""
    body = "".join(f"<h2>{plain(heading)}</h2>\n{content}\n" for heading, content in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{plain(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{plain(title)}</h1>\n{body}</body></html>\n"
    )
