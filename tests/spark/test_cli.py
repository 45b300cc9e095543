"""The command line: exit statuses, the one JSON object, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logwriter import LogWriter, receives, sends

from spark_jobs import output
from spark_jobs.cli import main
from spark_jobs.logs.schema import Kind
from spark_jobs.spark import java

FOREVER = """
#include "base/hash.h"
#include "files/latency_log.h"
#include <stdio.h>
int main(int argc, char **argv)
{
    pn_latlog *sender, *listener;
    uint64_t hash = pn_channel_hash(1, "c", 1);
    uint32_t sent, heard;
    (void)argc;
    if (pn_latlog_open(argv[1], "e", 1, &sender) < 0) return 1;
    if (pn_latlog_open(argv[1], "e", 2, &listener) < 0) return 1;
    if ((sent = pn_latlog_number(sender, hash, 1, "c", 1)) == 0) return 1;
    if ((heard = pn_latlog_number(listener, hash, 1, "c", 1)) == 0) return 1;
    pn_latlog_append(listener, &(struct pn_latrec){.ts = 1, .kind = PN_LAT_LISTEN,
                                                   .channel = heard});
    for (uint64_t i = 0; i < 2000000; i++) {
        struct pn_latrec s = {.ts = 2 + i, .chan_seq = i, .commit_seq = i, .channel = sent,
                              .kind = PN_LAT_SEND, .aux = i & 0xffff};
        struct pn_latrec r = s;
        r.kind = PN_LAT_RECV;
        r.channel = heard;
        r.ref_ts = s.ts;
        pn_latlog_append(sender, &s);
        pn_latlog_append(listener, &r);
        if (i == 20000)
            raise(SIGKILL);
    }
    return 0;
}
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    status = main([*map(str, arguments), "--json"])
    return status, json.loads(capsys.readouterr().out)


def some_logs(logs: Path, lost: int = 0) -> Path:
    sender, listener = LogWriter(logs, 1), LogWriter(logs, 2)
    sends(sender, "c", np.arange(1000))
    listener.add(Kind.LISTEN, channel="c", chan_seq=0)
    receives(listener, "c", np.delete(np.arange(1000), np.arange(100, 100 + lost)))
    sender.write()
    listener.write()
    return logs


def test_a_clean_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = some_logs(tmp_path / "logs")
    status, report = run(capsys, "audit", logs, "--out", tmp_path / "out")
    assert (status, report["status"], report["job"]) == (0, "clean", "audit")
    assert {"job", "status", "versions", "records", "wall_s", "segments", "rows"} <= set(report)
    assert report["records"] == 2 * 1001 + 1
    assert [set(s) >= {"file", "records", "damaged"} for s in report["segments"]] == [True] * 2
    (row,) = report["rows"]
    assert {name: row[name] for name in ("channel", "pid", "host", "expected", "distinct")} == {
        "channel": "c",
        "pid": 2,
        "host": "testhost",
        "expected": 1000,
        "distinct": 1000,
    }
    assert [row[n] for n in ("lost", "dup", "out_of_order", "corrupted", "unproven")] == [0] * 5
    assert json.loads((tmp_path / "out" / "audit.json").read_text()) == report


def test_a_violation_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = some_logs(tmp_path / "logs", lost=3)
    status, report = run(capsys, "audit", logs, "--out", tmp_path / "out")
    assert (status, report["status"], report["rows"][0]["lost"]) == (2, "violation", 3)


def test_damage_alone_is_no_violation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = some_logs(tmp_path / "logs")
    (logs / "empty.pynlog").touch()
    (logs / "other.pynlog").write_bytes(b"not a log" * 1000)
    listener = next(logs.glob("*.2.*"))
    os.truncate(listener, listener.stat().st_size - 640)
    status, report = run(capsys, "audit", logs, "--out", tmp_path / "out")
    damaged = {Path(s["file"]).name: s["damaged"] for s in report["segments"] if s["damaged"]}
    assert status == 0
    assert set(damaged) == {"empty.pynlog", "other.pynlog", listener.name}
    assert damaged[listener.name] == 10
    assert report["rows"][0]["lost"] is None


def test_nothing_that_can_be_read_is_not_clean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.pynlog").touch()
    for job in ("audit", "ingest", "report"):
        status, report = run(capsys, job, tmp_path, "--out", tmp_path / "out")
        assert (status, report["status"]) == (1, "error")
        assert report["error"].startswith("no log file can be read\n")
        assert "empty.pynlog: empty file" in report["error"]


def test_an_error_of_a_task_is_its_last_line(tmp_path: Path) -> None:
    class Py4JJavaError(Exception):
        pass

    text = "\n".join(
        [
            "An error occurred while calling o1.collect.",
            ": org.apache.spark.SparkException: Job aborted due to stage failure",
            "\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)",
            "Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call)",
            '  File "logs.py", line 1, in chunks',
            "PermissionError: [Errno 13] Permission denied: '/logs/a.pynlog'",
            "\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)",
        ]
    )
    assert output.described(Py4JJavaError(text)) == (
        "PermissionError: [Errno 13] Permission denied: '/logs/a.pynlog'"
    )


def test_results_are_replaced_only_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = some_logs(tmp_path / "logs")
    arguments = ("latency", logs, "--out", tmp_path / "out")
    assert run(capsys, *arguments)[0] == 0
    status, report = run(capsys, *arguments)
    assert (status, report["status"]) == (1, "error")
    assert "--overwrite" in report["error"]
    status, report = run(capsys, *arguments, "--overwrite")
    assert (status, len(report["rows"])) == (0, 2)
    names = {"channel", "pid", "host", "wake", "n", "min_ns", "p50_ns", "p90_ns", "p99_ns"}
    names |= {"p999_ns", "p9999_ns", "max_ns", "mean_ns"}
    assert names <= set(report["rows"][0])


def test_a_writer_killed_in_mid_write_leaves_a_clean_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run_native: Callable[..., str]
) -> None:
    with pytest.raises(subprocess.CalledProcessError) as killed:
        run_native("#include <signal.h>\n" + FOREVER, str(tmp_path / "logs"))
    assert killed.value.returncode == -signal.SIGKILL
    status, report = run(capsys, "audit", tmp_path / "logs", "--out", tmp_path / "out")
    (row,) = report["rows"]
    assert (status, row["expected"], row["distinct"], row["unproven"]) == (0, 20001, 20001, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ["audit", "/nonexistent/logs", "--out", "out"],
        ["audit", ".", "--out", "out"],
        ["nonsense", ".", "--out", "out"],
        ["audit", "."],
        [],
    ],
)
def test_what_cannot_run_exits_with_1(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status = main(arguments)
    except SystemExit as exit_:
        status = exit_.code  # type: ignore[assignment]
    assert status == 1
    assert list(tmp_path.iterdir()) == []


def test_as_a_program(tmp_path: Path) -> None:
    """One object on stdout, also from another directory, with nothing left behind there."""
    logs = some_logs(tmp_path / "logs")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-m", "spark_jobs", "wakeups", logs, "--out", tmp_path / "out", "--json"],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["records"] == 2 * 1001 + 1
    assert list(elsewhere.iterdir()) == []


def a_java(home: Path, version: str, modules: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\ncase $1 in\n"
        f"-version) echo 'openjdk version \"{version}\"' >&2;;\n"
        f"--list-modules) echo '{modules}';;\n"
        '*) printf "%s|" "$@";;\nesac\n'
    )
    java.chmod(0o755)
    return home


def test_a_java_with_the_module_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = a_java(tmp_path / "jdk", "21.0.8", "jdk.incubator.vector@21.0.8")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.ensure_java() == home.resolve()


@pytest.mark.parametrize(
    ("version", "extra"), [("21.0.8", ""), ("25.0.2", "-XX:+UseParallelGC|"), ("25.0.3", "")]
)
def test_the_shim_drops_the_argument(tmp_path: Path, version: str, extra: str) -> None:
    home = a_java(tmp_path / "jdk", version, "java.base")
    shim = java.write_shim(home, tmp_path / "cache")
    assert shim == java.write_shim(home, tmp_path / "cache")
    printed = subprocess.run(
        [shim / "bin" / "java", "-a", "--add-modules=jdk.incubator.vector", "b c"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed == f"{extra}-a|b c|"


def test_no_java_is_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = a_java(tmp_path / "old", "11.0.2", "java.base")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "find_spec", lambda _: None)
    with pytest.raises(java.JavaNotFoundError, match="is Java 11"):
        java.ensure_java()


def slow_and_quick(logs: Path) -> Path:
    """Two channels, one a thousand times as slow; a second each, from 10 s of 2001-09-09T01:46:40.

    That is 10**18 ns since 1970.
    """
    for pid in (1, 2):
        log = LogWriter(logs, pid, clock=10**18)
        for channel, late, begin in (("quick", 1000, 10), ("slow", 1_000_000, 11)):
            ts = begin * 10**9 + np.arange(1000) * 10**6
            receives(log, channel, np.arange(1000), ts=ts + late, ref_ts=ts)
        log.write()
    return logs


@pytest.mark.parametrize(
    ("limits", "over"),
    [
        (["--max", "p99=5ms"], 0),
        (["--max", "p99=500us"], 2),
        (["--max", "p50=1.5us", "--max", "max=0.9ms"], 2),
        (["--max", "min=999ns"], 4),
        (["--max", "min=999ns", "--pid", "1"], 4),
    ],
)
def test_latency_as_a_gate(
    limits: list[str], over: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = slow_and_quick(tmp_path / "logs")
    status, report = run(capsys, "latency", logs, "--out", tmp_path / "out", *limits)
    assert (status, report["totals"]["over"]) == (2 if over else 0, over)
    assert report["status"] == ("violation" if over else "clean")


def test_only_rows_that_are_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And only their violations count."""
    logs = slow_and_quick(tmp_path / "logs")
    arguments = ("latency", logs, "--overwrite", "--out", tmp_path / "out", "--max", "p99=5us")
    status, report = run(capsys, *arguments, "--channel", "q*")
    assert status == 0
    assert {row["channel"] for row in report["rows"]} == {"quick"}
    status, report = run(capsys, *arguments, "--pid", "2", "--host", "test*")
    assert status == 2
    assert {(row["channel"], row["pid"]) for row in report["rows"]} == {("quick", 2), ("slow", 2)}
    assert run(capsys, *arguments, "--host", "other")[1]["rows"] == []


@pytest.mark.parametrize(
    ("times", "counts"),
    [
        ([], {"quick": 2000, "slow": 2000}),
        (["--since", "2001-09-09T01:46:50.5"], {"quick": 1000, "slow": 2000}),
        (["--until", "2001-09-09T03:46:51+02:00"], {"quick": 2000}),
        (["--since", "2001-09-09T01:46:51Z", "--until", "2001-09-09T01:46:51.5"], {"slow": 998}),
        (["--since", "30d"], {}),
        (["--until", "30d"], {"quick": 2000, "slow": 2000}),
    ],
)
@pytest.mark.parametrize("archived", [False, True])
def test_records_of_some_time(
    times: list[str],
    counts: dict[str, int],
    archived: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs = slow_and_quick(tmp_path / "logs")
    if archived:
        run(capsys, "ingest", logs, "--out", tmp_path / "archive")
        logs = tmp_path / "archive"
    _, report = run(capsys, "latency", logs, "--out", tmp_path / "out", *times)
    found: dict[str, int] = {}
    for row in report["rows"]:
        if row["wake"] == "all":
            found[row["channel"]] = found.get(row["channel"], 0) + row["n"]
    assert found == counts


@pytest.mark.parametrize(
    ("job", "arguments", "problem"),
    [
        ("audit", ["--since", "1h"], "--since and --until are options of latency, timeline"),
        ("audit", ["--max", "p99=5ms"], "--max is an option of latency"),
        ("latency", ["--since", "1m", "--until", "2m"], "--until is not after --since"),
        (
            "latency",
            ["--since", "yesterday"],
            "yesterday is no time such as 2026-01-31",
        ),
        ("latency", ["--max", "p98=5ms"], "p98=5ms is no limit such as p99=5ms"),
        ("latency", ["--max", "p99=5"], "p99=5 is no limit such as p99=5ms"),
        ("latency", ["--max", "p99=ms"], "p99=ms is no limit such as p99=5ms"),
    ],
)
def test_what_cannot_be_asked_for(
    job: str, arguments: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = some_logs(tmp_path / "logs")
    try:
        status: object = main([job, str(logs), "--out", str(tmp_path / "out"), *arguments])
    except SystemExit as ended:
        status = ended.code
    assert status == 1
    assert problem in capsys.readouterr().err


def test_what_people_see(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line a channel, the slowest first, with units; all of it with --wide."""
    logs = slow_and_quick(tmp_path / "logs")
    arguments = ["latency", str(logs), "--overwrite", "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["channel", "n", "per", "s", "min", "p50", "p90", "p99", "p999", "max"]
    assert [line[:2] for line in lines[1:3]] == [["slow", "2,000"], ["quick", "2,000"]]
    assert lines[1][3:5] == ["1", "ms"]
    assert lines[3] == ["negative", "latencies:", "0"]
    assert main([*arguments, "--wide"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:4] == ["engine", "database", "channel", "host"]
    assert lines[1 + 2 * 2 * 2][0] == "negative"


def test_long_tables_end_with_how_many_more_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"pid": number, "took_ns": 1500} for number in range(1234)]
    report = {"rows": rows, "totals": {}, "segments": [], "status": "clean", "records": 10**6}
    output.print_table({**report, "wall_s": 1}, place="out/x.json")
    lines = capsys.readouterr().out.splitlines()
    assert lines[20:] == [
        "19   1.5 \N{MICRO SIGN}s",
        "... 1,214 more: --wide shows all rows, and out/x.json has them",
        "clean: 1,000,000 records in 1 s",
    ]


def test_nothing_is_copied_that_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So SIGTERM leaves no directory in /tmp."""
    monkeypatch.setattr("spark_jobs.fetched.TemporaryDirectory", None)
    logs = some_logs(tmp_path / "logs")
    assert main(["wakeups", str(logs), "--out", str(tmp_path / "out")]) == 0
