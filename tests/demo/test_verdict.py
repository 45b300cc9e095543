"""The demonstration's verdict, its tables and its exit status, of accounts that are made up."""

from __future__ import annotations

import dataclasses
import json
import logging
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pynotify
from pynotify.demo import cli, spark, tables, verdict
from pynotify.demo.ledger import GarbledEntryError, Ledger, NotifierAccount
from pynotify.demo.source import Library
from pynotify.demo.stage import DemoError, Outcome, Worker

ROOT = Path(__file__).resolve().parents[2]
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


@pytest.mark.parametrize(
    "payload",
    [b"", b"sent", b"sent 0 1 0 0 1:x", b"sent 9 1 0 0", b"heard listener-0", b"sEnt 0", b"\xff 1"],
)
def test_a_garbled_entry_of_the_ledger_is_told_apart(payload: bytes) -> None:
    ledger = Ledger(notifiers={0: NotifierAccount()})
    with pytest.raises(GarbledEntryError):
        ledger.take(pynotify.Notify("demo.ledger", payload))


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


@pytest.fixture
def run(engine: pynotify.Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The program, without its processes and without Spark; the status that it ends with."""

    def main(
        handed: dict[int, int] = OWED, *options: str, audit: str = "clean", **fails: Exception
    ) -> int:
        wakeups = {"rows": [], "totals": dict.fromkeys(WAKEUPS, 0)}
        report = {"status": audit, "records": 12, "channels": [], "processes": []}
        report |= {"wakeups": wakeups, "audit": {"rows": []}}
        monkeypatch.setattr(cli, "_stream", lambda *_: outcome_of(engine, handed))
        monkeypatch.setattr(cli, "_break", lambda *_: None)
        monkeypatch.setattr(spark, "report", lambda *_: report)
        for name, error in fails.items():
            place = cli if hasattr(cli, name) else spark
            monkeypatch.setattr(place, name, raising(error))
        return cli.main(["--out", str(tmp_path), *options])

    monkeypatch.setattr(spark, "require_spark", lambda: None)
    monkeypatch.setattr(cli.interrupts, "unwind_on_interrupt", lambda: None)
    monkeypatch.setattr(cli, "find_library", lambda: None)
    monkeypatch.delenv("BREAK", raising=False)
    logger = logging.getLogger("pynotify")
    level = logger.level
    yield main
    logger.setLevel(level)  # the program sets that of its process


WAKEUPS = ("signals_sent", "wakes", "useful_wakes", "useless_wakes", "messages")


def test_exit_status_0_is_a_clean_run(
    run: Any, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run() == 0
    assert "\nclean: 1 surviving listeners" in capfd.readouterr().out
    assert json.loads((tmp_path / "demo.json").read_text())["status"] == "clean"


@pytest.mark.parametrize("fault", [{"handed": OWED | {1: 5}}, {"audit": "violation"}])
def test_exit_status_2_is_a_violation(
    run: Any, capfd: pytest.CaptureFixture[str], tmp_path: Path, fault: dict[str, Any]
) -> None:
    assert run(**fault) == 2
    assert "\nVIOLATION\n" in capfd.readouterr().out
    assert json.loads((tmp_path / "demo.json").read_text())["status"] == "violation"


def test_what_no_process_has_sent_is_a_violation(
    run: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(_stream=GarbledEntryError("the ledger was handed b'sEnt'")) == 2
    assert capfd.readouterr().out == "VIOLATION\n  the ledger was handed b'sEnt'\n"


@pytest.mark.parametrize("where", ["require_spark", "_stream", "report"])
@pytest.mark.parametrize("error", [DemoError("Java"), OSError("disk"), pynotify.Error("lock")])
def test_exit_status_1_is_a_run_that_proves_nothing(
    run: Any, capfd: pytest.CaptureFixture[str], where: str, error: Exception
) -> None:
    assert run(**{where: error}) == 1
    printed, said = capfd.readouterr()
    assert "VIOLATION" not in printed + said
    assert f"pynotify demo: {type(error).__name__}: {error}" in said


def test_exit_status_1_is_a_fault_that_was_not_found(
    run: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(OWED, "--break", "drop") == 1
    assert "did not find the fault of BREAK=drop" in capfd.readouterr().err


@pytest.mark.parametrize("status", [0, 1, 2])
def test_make_demo_says_which_it_was(status: int, tmp_path: Path) -> None:
    """make itself ends with 2 for either."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$BREAK: $*"\nexit {status}\n')
    python.chmod(0o755)
    make = ["make", "--old-file=setup", "demo", f"PY={python}", "BREAK=dup", "ARGS=--keep-logs"]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "dup: -m pynotify.demo --keep-logs\n" in done.stdout
    assert done.returncode == (2 if status else 0)
    assert ("could not run" in done.stderr) == (status == 1)
    assert ("a guarantee was broken" in done.stderr) == (status == 2)
