"""What is printed, within 100 columns, and what goes into demo.json."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Iterable, Sequence
from typing import Any

from pynotify._table import table as plain
from pynotify.demo.stage import Outcome, Worker
from pynotify.demo.verdict import BROKEN, Verdict

TOP_CHANNELS = 12
_LATENCIES = ("p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns")
_HEADS = ("count", "per s", "p50", "p90", "p99", "p99.9", "max")
_ENGINE = {
    "signals_sent": "signals sent",
    "signals_elided": "elided",
    "wakeups_useful": "useful wake-ups",
    "wakeups_useless": "useless",
}
_NAME_WIDTH = 26


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The first column to the left, figures to the right."""
    lines = plain([heads[0], *(f">{head}" for head in heads[1:])], [map(_cell, r) for r in rows])
    return [f"  {line}" for line in lines]


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    text = str(value)
    return text if len(text) <= _NAME_WIDTH else text[: _NAME_WIDTH - 3] + "..."


def _milliseconds(ns: float) -> str:
    return f"{ns / 1e6:.3f}" if ns < 1e8 else f"{ns / 1e6:.0f}"


def _latency_row(name: str, row: dict[str, Any]) -> list[object]:
    rate = row["rate_per_s"]
    return [
        name,
        row["n"],
        None if rate is None else round(rate),
        *(_milliseconds(row[key]) for key in _LATENCIES),
    ]


def _range(rows: Sequence[dict[str, Any]], key: str) -> str:
    values = [row[key] for row in rows]
    return f"{_milliseconds(min(values))} to {_milliseconds(max(values))}"


def _channels(report: dict[str, Any]) -> list[str]:
    rows = sorted(report["channels"], key=lambda row: -row["n"])
    top, rest = rows[:TOP_CHANNELS], rows[TOP_CHANNELS:]
    lines = ["", "Per channel: received, and milliseconds from commit to receive", ""]
    lines += table(("channel", *_HEADS), (_latency_row(row["channel"], row) for row in top))
    if rest:
        lines.append(
            f"  and {len(rest)} more: {sum(row['n'] for row in rest):,} received, "
            f"p50 {_range(rest, 'p50_ns')}, p99 {_range(rest, 'p99_ns')}, "
            f"max {_milliseconds(max(row['max_ns'] for row in rest))}"
        )
    return lines


def _names(outcome: Outcome) -> dict[int, str]:
    names = {worker.pid: _name(worker) for worker in outcome.workers}
    return {**names, outcome.parent: "parent (the ledger)"}


def _name(worker: Worker) -> str:
    if worker.killed:
        return f"{worker.name}, killed"
    return worker.name


def _processes(outcome: Outcome, report: dict[str, Any]) -> list[str]:
    names = _names(outcome)
    rows = sorted(report["processes"], key=lambda row: names.get(row["pid"], ""))
    return [
        "",
        "Per process: received, and milliseconds from commit to receive",
        "",
        *table(
            ("process", *_HEADS),
            (_latency_row(names.get(row["pid"], str(row["pid"])), row) for row in rows),
        ),
    ]


def _wakeups(outcome: Outcome, verdict: Verdict) -> list[str]:
    names = _names(outcome)
    idle = {worker.pid for worker in outcome.workers if worker.role == "idle"}
    rows = [row for row in verdict.report["wakeups"]["rows"] if row["pid"] not in idle]
    rows.sort(key=lambda row: names.get(row["pid"], ""))
    totals = verdict.report["wakeups"]["totals"]
    before, after = outcome.before, outcome.after
    changed = ", ".join(
        f"{getattr(after, name) - getattr(before, name):,} {text}" for name, text in _ENGINE.items()
    )
    return [
        "",
        "Signals sent, against wake-ups that found something",
        "",
        *table(
            ("process", "signals sent", "wake-ups", "useful", "useless", "messages"),
            [
                *(_wakeup_row(names.get(row["pid"], ""), row) for row in rows),
                _wakeup_row(
                    f"{len(idle)} idle listeners",
                    {"signals_sent": verdict.idle_signals, "wakes": verdict.idle_wakes}
                    | {"useful_wakes": 0, "useless_wakes": verdict.idle_wakes}
                    | {"messages": verdict.idle_messages},
                ),
                _wakeup_row("all", totals),
            ],
        ),
        f"  the engine's own counters: {changed}",
    ]


def _wakeup_row(name: str, row: dict[str, Any]) -> list[object]:
    keys = ("signals_sent", "wakes", "useful_wakes", "useless_wakes", "messages")
    return [name, *(row[key] for key in keys)]


def _audit(verdict: Verdict) -> list[str]:
    short = {"out_of_order": "order", "corrupted": "corrupt"}
    audited = ("expected", *BROKEN, "unproven")
    heads = ("listener", "channels", "committed", "handed", *(short.get(n, n) for n in audited))
    rows = [
        [
            _name(found.worker),
            len(found.worker.channels),
            found.owed,
            found.handed,
            *(found.audit[key] for key in audited),
        ]
        for found in verdict.listeners
    ]
    return [
        "",
        "The audit: committed and handed by the parent's accounts, the rest by Spark from the logs",
        "",
        *table(heads, rows),
    ]


def _stream(outcome: Outcome) -> list[str]:
    accounts = outcome.accounts.notifiers.values()
    transactions = sum(account.transactions for account in accounts)
    beside = (
        (sum(a.collapsed for a in accounts), "duplicates collapsed in their transactions"),
        (sum(a.rolled_back for a in accounts), "rolled back, with savepoints or wholly"),
        (outcome.open_when_killed, "in the open transaction of notifier-0 when it was killed"),
    )
    return [
        f"{outcome.notifications:,} notifications committed and heard in {outcome.seconds:.1f} s, "
        f"{outcome.notifications / outcome.seconds:,.0f} per second,",
        f"in {transactions:,} transactions on {len(outcome.library.channels)} channels; beside",
        *(f"  {count:>11,} {what}" for count, what in beside),
        f"listener-0 was killed with {outcome.killed_listener_at:,} committed; "
        "each of the two was replaced",
    ]


def printed(outcome: Outcome, verdict: Verdict) -> str:
    """The whole report."""
    lines = [
        *_stream(outcome),
        *_channels(verdict.report),
        *_processes(outcome, verdict.report),
        *_wakeups(outcome, verdict),
        *_audit(verdict),
        "",
    ]
    return "\n".join(lines)


def conclusion(outcome: Outcome, verdict: Verdict) -> str:
    """The last words."""
    if verdict.clean:
        survivors = sum(found.worker.survived for found in verdict.listeners)
        return (
            f"clean: {survivors} surviving listeners, {len(BROKEN)} kinds of fault, none found; "
            f"{verdict.report['records']:,} log records"
        )
    return "\n".join(["VIOLATION", *(f"  {problem}" for problem in verdict.problems)])


def as_json(outcome: Outcome, verdict: Verdict, broken: str | None) -> dict[str, Any]:
    """Everything, for demo.json."""
    names = outcome.library.channels
    return {
        "status": "clean" if verdict.clean else "violation",
        "problems": verdict.problems,
        "break": broken,
        "python": platform.python_version(),
        "notifications": outcome.notifications,
        "seconds": outcome.seconds,
        "collapsed": sum(a.collapsed for a in outcome.accounts.notifiers.values()),
        "rolled_back": sum(a.rolled_back for a in outcome.accounts.notifiers.values()),
        "open_when_killed": outcome.open_when_killed,
        "killed_listener_at": outcome.killed_listener_at,
        "notifiers": [
            {"notifier": number} | dataclasses.asdict(account)
            for number, account in outcome.accounts.notifiers.items()
        ],
        "committed": {names[c]: n for c, n in outcome.accounts.committed.most_common()},
        "workers": [
            dataclasses.asdict(worker) | {"channels": [names[c] for c in worker.channels]}
            for worker in outcome.workers
        ],
        "listeners": [
            {"name": f.worker.name, "pid": f.worker.pid, "killed": f.worker.killed}
            | {"committed": f.owed, "handed": f.handed}
            | f.audit
            for f in verdict.listeners
        ],
        "idle": {"wakes": verdict.idle_wakes, "messages": verdict.idle_messages},
        "engine": {
            "before": dataclasses.asdict(outcome.before) | {"backends": None},
            "after": dataclasses.asdict(outcome.after) | {"backends": None},
            "check": outcome.check_problems,
        },
        "report": verdict.report,
    }
