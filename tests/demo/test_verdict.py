"""The demonstration's verdict and its tables, of accounts and reports that are made up."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest

import pynotify
from pynotify.demo import tables, verdict
from pynotify.demo.ledger import Ledger, NotifierAccount
from pynotify.demo.source import Library
from pynotify.demo.stage import Outcome, Worker

LISTENER = Worker("listener-0", 4711, "listener", 0, channels=(0, 1))
#: Of 5 on each channel, and with the channel's end.
OWED = {0: 6, 1: 6}
CLEAN: dict[str, Any] = {"status": "clean", "audit": {"rows": []}, "wakeups": {"rows": []}}


def outcome_of(engine: pynotify.Engine, handed: dict[int, int]) -> Outcome:
    """One notifier, in whose two transactions nothing went wrong, and one listener."""
    account = NotifierAccount(committed=10, transactions=2, done=True)
    stat = engine.stat()
    return Outcome(
        library=Library((), ("package", "module")),
        notifications=10,
        workers=[LISTENER],
        accounts=Ledger(
            notifiers={0: account},
            commits=[(8, Counter({0: 2})), (9, Counter({0: 3, 1: 5}))],
            listening={LISTENER.name: 7},
            heard={LISTENER.name: Counter(handed)},
        ),
        before=stat,
        after=dataclasses.replace(stat, notifications=10),
        parent=1,
        open_when_killed=0,
        killed_listener_at=0,
        seconds=1.0,
        check_problems=[],
        sent_by_parent=0,
    )


@pytest.mark.parametrize(
    ("handed", "named"),
    [
        (OWED, []),
        (OWED | {1: 5}, ["handed 5 messages of module, not the 6"]),
        (OWED | {0: 7}, ["handed 7 messages of package, not the 6"]),
        ({1: 6}, ["handed 0 messages of package, not the 6"]),
    ],
    ids=["all", "one missing", "one too many", "a channel missing"],
)
def test_a_listener_is_judged_by_what_the_notifiers_committed(
    engine: pynotify.Engine, handed: dict[int, int], named: list[str]
) -> None:
    """Without a log: the audit, which finds nothing here, is not asked."""
    found = verdict.judge(outcome_of(engine, handed), CLEAN)
    assert len(found.problems) == len(named)
    assert all(text in problem for text, problem in zip(named, found.problems, strict=True))
    assert found.clean == (not named)


def test_figures_stand_below_their_heads(engine: pynotify.Engine) -> None:
    figures = dict(zip(tables._LATENCIES, (1e6, 2e6, 3e6, 4e6, 5e6), strict=True))
    row = {"n": 12, "rate_per_s": 34.0, **figures}
    report = {"channels": [{"channel": "package", **row}], "processes": [{"pid": 4711, **row}]}
    printed = {
        "channel": ("package", tables._channels(report)),
        "process": ("listener-0", tables._processes(outcome_of(engine, OWED), report)),
    }
    for head, (name, lines) in printed.items():
        heads, values = lines[-2].replace("per s", "per-s"), lines[-1]
        columns = dict(zip(heads.split(), values.split(), strict=True))
        assert columns == {
            head: name, "count": "12", "per-s": "34",
            "p50": "1.000", "p90": "2.000", "p99": "3.000", "p99.9": "4.000", "max": "5.000",
        }  # fmt: skip
