"""The Spark job's report and the parent's own accounts, put side by side and judged.

Spark reads what the engine logged.  The parent knows, without any log, what the notifiers
committed and what the listeners were handed; neither takes the other's word.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pynotify.demo import stage
from pynotify.demo.stage import DemoError, Outcome, Worker

BROKEN = ("lost", "dup", "out_of_order", "corrupted")
AUDITED = ("expected", "distinct", *BROKEN, "unproven")


@dataclass
class ListenerVerdict:
    """One listener in the eyes of the audit and of the parent.

    `owed` and `handed` are the parent's figures; None where it cannot know, for a killed one.
    """

    worker: Worker
    audit: dict[str, int | None]
    owed: int | None = None
    handed: int | None = None


@dataclass
class Verdict:
    """All that was found; `problems` is empty after a clean run."""

    report: dict[str, Any]
    listeners: list[ListenerVerdict]
    idle_signals: int
    idle_wakes: int
    idle_messages: int
    problems: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def _audited(report: dict[str, Any], worker: Worker) -> dict[str, int | None]:
    """Sums over the listener's channels; None is what an incomplete log cannot tell."""
    rows = [row for row in report["audit"]["rows"] if row["pid"] == worker.pid]
    sums: dict[str, int | None] = {}
    for name in AUDITED:
        values = [row[name] for row in rows]
        sums[name] = None if None in values else sum(values)
    return sums


def _judge_listener(outcome: Outcome, report: dict[str, Any], worker: Worker) -> ListenerVerdict:
    result = ListenerVerdict(worker, _audited(report, worker))
    if worker.survived:
        result.owed = stage.owed(outcome, worker).total()
        result.handed = outcome.accounts.heard[worker.name].total()
    return result


def _listener_problems(outcome: Outcome, found: ListenerVerdict) -> list[str]:
    worker, audit = found.worker, found.audit
    if not worker.survived:
        return []
    if audit["lost"] is None:
        raise DemoError(f"the log of {worker.name} is incomplete: the audit can prove nothing")
    problems = [
        f"the audit of {worker.name}: {name} {audit[name]}"
        for name in (*BROKEN, "unproven")
        if audit[name]
    ]
    owed, heard = stage.owed(outcome, worker), outcome.accounts.heard[worker.name]
    problems += [
        f"{worker.name} was handed {heard[channel]} messages of "
        f"{outcome.library.channels[channel]}, not the {owed[channel]} committed there"
        for channel in sorted({*owed, *heard})
        if owed[channel] != heard[channel]
    ]
    return problems


def _engine_problems(outcome: Outcome) -> list[str]:
    """The engine's counters against the accounts."""
    accounts = outcome.accounts
    collapsed = sum(account.collapsed for account in accounts.notifiers.values())
    pairs = (
        ("committed", accounts.total, outcome.notifications),
        (
            "notifications counted by the engine",
            outcome.after.notifications,
            accounts.total + accounts.entries - len(accounts.idle) + outcome.sent_by_parent,
        ),
        ("duplicates counted by the engine", outcome.after.collapsed, collapsed),
    )
    return [f"{what}: {found}, not {wanted}" for what, found, wanted in pairs if found != wanted]


def judge(outcome: Outcome, report: dict[str, Any]) -> Verdict:
    """Everything that must hold.  Raises DemoError when a survivor's log proves nothing."""
    listeners = [
        _judge_listener(outcome, report, worker)
        for worker in outcome.workers
        if worker.role == "listener"
    ]
    idle = {worker.pid for worker in outcome.workers if worker.role == "idle"}
    woken = [row for row in report["wakeups"]["rows"] if row["pid"] in idle]
    if len(woken) != len(idle):
        raise DemoError(f"{len(woken)} of {len(idle)} idle listeners have a latency log")
    verdict = Verdict(
        report,
        listeners,
        idle_signals=sum(row["signals_sent"] for row in woken),
        idle_wakes=sum(row["wakes"] for row in woken),
        idle_messages=sum(outcome.accounts.idle.values()),
    )
    problems = verdict.problems
    for listener in listeners:
        problems += _listener_problems(outcome, listener)
    problems += _engine_problems(outcome)
    problems += [f"the segment: {problem}" for problem in outcome.check_problems]
    if verdict.idle_wakes or verdict.idle_messages:
        problems.append(
            f"the idle listeners were woken {verdict.idle_wakes} times and handed "
            f"{verdict.idle_messages} messages"
        )
    if report["status"] != "clean" and not problems:
        problems.append("the audit found a violation, see its rows")
    return verdict
