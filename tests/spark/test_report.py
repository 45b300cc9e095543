"""compare, report and the .hgrm files."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest
from logwriter import LogWriter, flip_bit, receives, sends

from spark_jobs.cli import main
from spark_jobs.engine.base import Shared
from spark_jobs.engine.local import LocalEngine
from spark_jobs.figures import hgrm
from spark_jobs.figures.histogram import bucket
from spark_jobs.jobs import audit, e2e, ingest, latency, report, wakeups
from spark_jobs.logs.find import span
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import USEFUL, Kind, Wake
from spark_jobs.report import svg
from spark_jobs.report.assets import SCRIPT
from spark_jobs.survey import survey

SVG_NAMES = "http://www.w3.org/2000/svg"
EVIL = "<script>alert('x')</script>&\"\n\x1b[31m"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    status = main([*map(str, arguments), "--json"])
    return status, json.loads(capsys.readouterr().out)


def one_run(logs: Path, values: dict[str, np.ndarray], boot: str = "b1") -> Path:
    for pid in (1, 2):
        log = LogWriter(logs, pid, clock=10**18, boot_id=boot)
        for channel, each in values.items():
            ts = 10**9 + np.arange(len(each)) * 1000
            receives(log, channel, np.arange(len(each)), ts=ts + each, ref_ts=ts)
        log.write()
    return logs


@pytest.mark.full
def test_ratios_between_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(5)
    base = (random.pareto(1.5, 20_000) * 1000).astype(np.int64) + 1000
    before = one_run(tmp_path / "before", {"same": base, "slower": base, "gone": base})
    tail = np.where(base > np.percentile(base, 95), 3 * base, base)
    after = one_run(tmp_path / "after", {"same": base, "slower": tail, "few": base[:20]}, "b2")
    status, _ = run(capsys, "latency", before, "--out", tmp_path / "results")
    assert status == 0

    arguments = ("compare", tmp_path / "results", after, "--out", tmp_path / "out")
    status, report = run(capsys, *arguments, "--threshold", 1.5)
    rows = {row["channel"]: row for row in report["rows"]}
    assert set(rows) == {None, "same", "slower", "gone", "few"}
    assert (status, report["status"]) == (2, "violation")
    assert rows["same"]["p99_ratio"] == 1.0
    assert rows["slower"]["p50_ratio"] == 1.0
    assert rows["slower"]["p99_ratio"] == pytest.approx(3, rel=0.008)
    assert rows["slower"]["regressions"] == ["p99", "p999"]  # four above p99.99 prove nothing
    assert rows["slower"]["max_ratio"] == 3.0
    assert rows["gone"]["n_after"] == 0
    assert rows["gone"]["p99_ratio"] is None
    assert rows["few"]["n_before"] == 0
    assert rows[None]["n_before"] == 3 * 2 * len(base)
    assert rows[None]["mean_before_ns"] == pytest.approx(base.mean())

    kept = (tmp_path / "results", tmp_path / "out" / "after")
    status, again = run(capsys, "compare", *kept, "--out", tmp_path / "again", "--threshold", 4)
    assert (status, again["totals"]["regressed"]) == (0, 0)
    for row in report["rows"]:
        row["regressions"] = []
    assert again["rows"] == report["rows"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["compare", "one"], "BEFORE and AFTER"),
        (["compare", "one", "two"], "no such file"),
        (["audit", "one", "--threshold", "2"], "--threshold is an option of compare, report"),
        (["latency", "one", "--before", "two"], "--before is an option of report"),
        (["latency", "one", "--window", "2"], "--window is an option of timeline, lag, e2e"),
    ],
)
def test_what_does_not_fit_is_said(
    arguments: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = run(capsys, *arguments, "--out", tmp_path / "out")
    assert (status, report["status"]) == (1, "error")
    assert problem in report["error"]
    assert not (tmp_path / "out").exists()


def two_runs(place: Path) -> tuple[Path, Path, dict[str, dict[str, np.ndarray]]]:
    """Before and after, and the latencies of each channel: a tail has grown, a channel is new, one
    is gone, and what was woken by a timer is ten times as slow.
    """
    random = np.random.default_rng(8)
    base = (random.pareto(1.5, 4000) * 1000).astype(np.int64) + 1000
    tail = np.where(base > np.percentile(base, 95), 3 * base, base)
    values = {
        "before": {"same": base, "slower": base, "gone": base[:40]},
        "after": {"same": base, "slower": tail, "new": base[:50]},
    }
    for name, channels in values.items():
        log = LogWriter(place / name, 1, clock=10**18, boot_id=name)
        for channel, late in channels.items():
            ts = 10**9 + np.arange(len(late)) * (1000 if name == "before" else 2000)
            wake = np.where(late > 3000, Wake.TIMER, Wake.SIGNAL)
            receives(log, channel, np.arange(len(late)), ts=ts + late, ref_ts=ts, wake=wake)
        log.write()
    return place / "before", place / "after", values


def section(page: str, heading: str) -> str:
    return page.split(f"<h2>{heading}</h2>", 1)[1].split("<h2>", 1)[0]


def cells(part: str) -> dict[str, list[float | None]]:
    """The rows of a table by their first cell: numbers as they are sorted by."""
    found = {}
    for line in re.findall(r"<tr>(<td>.*?)</tr>", part):
        name, *others = re.findall(r"<td(?: data-value=\"(.*?)\")?>(.*?)</td>", line)
        found[name[1]] = [float(value) if value else None for value, _ in others]
    return found


def test_before_and_after_in_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after, values = two_runs(tmp_path)
    given = ("report", after, "--before", before, "--out", tmp_path / "out")
    status, report = run(capsys, *given)
    assert status == 0
    both = sum(len(each) for channels in values.values() for each in channels.values())
    assert report["records"] >= both, "those of the run before are among them"
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.index("<h2>Before and after") == page.index("<h2>"), "it is what was asked for"
    part = section(page, "Before and after")

    rows = cells(part)
    waked = ["woken by a signal", "woken by a timer"]
    assert list(rows) == ["all", *waked, "slower", "same", "gone", "new"]
    per_quantile = {"p50": 5, "p90": 8, "p99": 11, "p999": 14, "max": 17}
    whole = {name: np.concatenate(list(each.values())) for name, each in values.items()}
    limits = {"all": (0, 1 << 60), waked[0]: (0, 3000), waked[1]: (3001, 1 << 60)}
    for name, row in rows.items():
        low, high = limits.get(name, (0, 1 << 60))
        for side, at in (("before", 0), ("after", 1)):
            own = whole[side] if name in limits else values[side].get(name, np.empty(0))
            own = np.sort(own[(own >= low) & (own <= high)])
            assert row[at] == len(own)
            for quantile, place in per_quantile.items():
                share = {"p50": 5000, "p90": 9000, "p99": 9900, "p999": 9990}.get(quantile, 10000)
                exact = own[max(1, -(-len(own) * share // 10000)) - 1] if len(own) else None
                told = row[place + at]
                assert told == (exact if exact is None else pytest.approx(exact, rel=0.004)), name
                if row[place] and row[place + 1]:
                    assert row[place + 2] == row[place + 1] / row[place]  # type: ignore[operator]
    assert rows["same"][4] == pytest.approx(0.5, rel=0.1), "half as many a second"
    sentence = re.search(r'<p class="verdict note">(.*?)</p>', part)
    assert sentence is not None
    ratio = rows["slower"][13]
    assert f"largest is the ratio of slower, {ratio:.2f}" in sentence[1]
    assert "1 channel is gone, 1 channel is new" in part
    plot = re.search(r"<figure>(.*?)</figure>", part, re.DOTALL)
    assert plot is not None
    assert plot[1].count('class="curve"') == 2
    assert [word in plot[1] for word in (">before<", ">after<")] == [True, True]

    compared = pq.read_table(tmp_path / "out" / "compare")
    status, _ = run(capsys, "compare", before, after, "--out", tmp_path / "compared")
    assert compared == pq.read_table(tmp_path / "compared" / "compare")


def test_results_are_a_before_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after, _ = two_runs(tmp_path)
    assert run(capsys, "report", before, "--out", tmp_path / "old")[0] == 0
    pages = []
    for name, earlier in (("of_logs", before), ("of_results", tmp_path / "old")):
        given = ("report", after, "--before", earlier, "--out", tmp_path / name)
        assert run(capsys, *given)[0] == 0
        pages.append((tmp_path / name / "report.html").read_text())
    one, other = (section(page, "Before and after") for page in pages)
    assert one == other


def test_a_report_is_a_gate_with_a_threshold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after, _ = two_runs(tmp_path)
    given = ("report", after, "--before", before, "--out", tmp_path / "out", "--overwrite")
    for threshold, status, how, said in (
        (4, 0, "good", "nothing is beyond 4 times what it was"),
        (2, 2, "bad", "a percentile is beyond 2 times what it was of all together, slower"),
    ):
        assert run(capsys, *given, "--threshold", threshold)[0] == status
        part = section((tmp_path / "out" / "report.html").read_text(), "Before and after")
        assert re.search(rf'class="verdict {how}">[^<]*{said}', part)
    status, report = run(capsys, "report", after, "--out", tmp_path / "no", "--threshold", 2)
    assert status == 1
    assert "--threshold of a report needs --before" in report["error"]


@pytest.mark.parametrize("job", ["report", "compare"])
def test_a_before_that_cannot_be_read_is_an_error(
    job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, after, _ = two_runs(tmp_path)
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "bad.pynlog").write_bytes(b"no log")
    given = [after, "--before", bad] if job == "report" else [bad, after]
    status, report = run(capsys, job, *given, "--out", tmp_path / "out")
    assert status == 1
    assert "no log file can be read" in report["error"]
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def a_report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    logs = tmp_path_factory.mktemp("logs")
    random = np.random.default_rng(6)
    for boot, host in (("b1", "h1"), ("b2", "h1")):
        clock, engine = 10**18, f"engine.{boot}"
        head: dict[str, Any] = {"clock": clock, "engine": engine, "host": host, "boot_id": boot}
        sender = LogWriter(logs, 9, **head)
        listener = LogWriter(logs, 1, **head)
        for channel in ("plain", EVIL, "x" * 255):
            count = 3000
            seq, ts = np.arange(count), 10**9 + np.arange(count) * 10**6
            sends(sender, channel, seq, ts=ts)
            listener.add(Kind.LISTEN, channel=channel, chan_seq=0, ts=10**9)
            late = (random.pareto(1.5, count) * 1000).astype(np.int64)
            receives(listener, channel, seq, ts=ts + late, ref_ts=ts)
        sender.add(Kind.SIGNAL, 30, aux=2, ts=10**9)
        listener.add(Kind.WAKE, 60, flags=USEFUL, batch=50, wake=Wake.SIGNAL, ts=10**9)
        jobs = np.arange(1000)
        at = {"commit_seq": jobs, "attempts": 1, "ref_ts": 10**9 + jobs * 10**6}
        sender.add(Kind.PUBLISH, 1000, channel="jobs", ts=at["ref_ts"], commit_seq=jobs)
        for kind, after in ((Kind.DELIVER, 10**6), (Kind.FIN, 10**8)):
            listener.add(kind, 1000, channel="jobs:work", ts=at["ref_ts"] + after, **at)
        gone = LogWriter(logs, 2, **head)
        gone.add(Kind.DROP, ts=10**9 + 5 * 10**8)
        gone.write(sealed=False)
        again = LogWriter(logs, 2, **head)  # another connection of the process
        again.add(Kind.WAKE, ts=[2 * 10**9])
        again.write()
        for log in (sender, listener):
            log.write()
    (logs / "bad.pynlog").write_bytes(b"<b>bad")
    out = tmp_path_factory.mktemp("out")
    assert main(["report", str(logs), "--out", str(out)]) == 0
    return out, json.loads((out / "report.json").read_text())


class Page(HTMLParser):
    """Tags that occur, and links to anything outside."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [name for name, _ in attrs if name in ("src", "href", "xlink:href", "data")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_needs_nothing_else_and_escapes_names(
    a_report: tuple[Path, dict[str, Any]],
) -> None:
    out, report = a_report
    content = (out / "report.html").read_text()
    page = Page()
    page.feed(content)
    assert page.links == []
    assert content.count("<script") == 1
    assert content.count(f"<script>{SCRIPT}</script>") == 1
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in content
    assert "b" not in page.tags
    assert not re.search(r"url\(|@import|https?:", content.replace(SVG_NAMES, ""))
    assert "\x1b" not in content
    assert EVIL.replace("\n", "\\n").replace("\x1b", "\\x1b") in page.words
    assert (report["status"], len(report["rows"])) == ("clean", 1 + 1 + 6)


def test_the_page_draws_each_clock_by_itself(a_report: tuple[Path, dict[str, Any]]) -> None:
    out, _ = a_report
    content = (out / "report.html").read_text()
    plots = re.findall(r"<figure>(.*?)</figure>", content, re.DOTALL)
    for plot in plots:
        ElementTree.fromstring(plot)
    labels = [re.search(r'aria-label="([^"]*)"', plot)[1] for plot in plots]  # type: ignore[index]
    assert labels == [
        "latency by percentile",
        "latency by what ended the sleep",
        *[
            "messages and latency over time",
            "p99 latency by channel and time",
            "messages not finished over time",
            "processes over time",
        ]
        * 2,
    ]
    begins = [re.search(r'data-place="(.*?)" data-begin="(.*?)" data-end', plot) for plot in plots]
    assert len({found.groups() for found in begins[2:] if found}) == 2, "they go by one scale"
    lanes = plots[5]
    assert lanes.count("<title>Gap at ") == 1
    assert [lanes.count(f", {end}</title></rect>") for end in ("closed", "not closed")] == [2, 2]
    assert (lanes.count("<title>start, "), lanes.count("<title>death, ")) == (3, 1)
    (death,) = re.findall(r"<title>death, (.*?)</title>", lanes)
    assert death == "pid 2, 2 connections: 01:46:41.500 to 01:46:42, not closed"
    assert lanes.count("<g><title>pid ") == 3, "a lane for each process"
    assert plots[1].count('class="curve"') == 1, "all were received without sleeping"
    assert plots[0].count('class="curve"') == 7
    # 3 s of three channels in windows of 20 ms
    assert 400 < plots[3].count("<rect") < 3 * 160


def test_it_begins_with_a_sentence(
    a_report: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = (a_report[0] / "report.html").read_text()
    head = content[: content.index("<h2>")]
    assert '<p class="verdict good">Nothing that was owed is missing' in head
    assert "<dt>command</dt><dd>python -m spark_jobs report " in head
    assert "<dt>time</dt><dd>2001-09-09 01:46:41.000 to 2001-09-09 01:46:43.999 UTC, 3 s<" in head
    assert "8 connections of 6 processes on 1 host with 2 clocks" in head
    log = LogWriter(tmp_path / "logs", 1)
    sends(log, "lossy", np.arange(10))
    receives(log, "lossy", np.array([1, 2, 4]))
    log.add(Kind.FIN, 2, channel="jobs:work", commit_seq=7, attempts=1)
    log.write()
    assert run(capsys, "report", tmp_path / "logs", "--out", tmp_path / "out")[0] == 2
    head = (tmp_path / "out" / "report.html").read_text()
    assert (
        '<p class="verdict bad">1 listener did not get what was owed and in 1 '
        "channel of topics finished messages came again.</p>"
    ) in head


def test_latency_by_what_ended_the_sleep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for pid, wake, took in ((1, Wake.SIGNAL, 1000), (2, Wake.SIGNAL, 3000), (3, Wake.FD, 900)):
        log = LogWriter(tmp_path / "logs", pid, clock=10**18)
        ts = 10**9 + np.arange(100) * 10**6
        receives(log, "a", np.arange(100), ts=ts + took, ref_ts=ts, wake=wake)
        log.write()
    assert run(capsys, "report", tmp_path / "logs", "--out", tmp_path / "out")[0] == 0
    content = (tmp_path / "out" / "report.html").read_text()
    (told,) = re.findall(
        r"<h2>Percentiles by what ended the sleep</h2>(.*?)</table>", content, re.S
    )
    rows = re.findall(r"<tr><td>([^<]+)</td>(.*?)</tr>", told)
    values = {name: re.findall(r'data-value="(\d+)"', cells) for name, cells in rows}
    assert [int(each) for each in values["its descriptor"]] == [100, *[900] * 6]
    n, low, p50, p90, *_, high = (int(each) for each in values["a signal"])
    assert (n, low, high) == (200, 1000, 3000)
    assert p50 == pytest.approx(1000, rel=0.004)
    assert p90 == pytest.approx(3000, rel=0.004)
    assert list(values) == ["a signal", "its descriptor"]
    (plot,) = re.findall(r"<h2>Latency by what ended the sleep</h2>(.*?)</figure>", content, re.S)
    assert re.findall(r"<g><title>([^<]+)</title>", plot) == ["a signal", "its descriptor"]


def test_topics_are_told(a_report: tuple[Path, dict[str, Any]]) -> None:
    content = (a_report[0] / "report.html").read_text()
    (told,) = re.findall(r"<h2>Topics</h2>(.*?)</table>", content, re.DOTALL)
    assert told.count("<tr><td>jobs</td><td>work</td>") == 2
    assert 'data-value="100000000">100 ms</td>' in told, "from publishing to finishing"


def test_every_channel_has_a_distribution(a_report: tuple[Path, dict[str, Any]]) -> None:
    out, report = a_report
    files = [Path(row["path"]) for row in report["rows"] if row["name"] == "hgrm"]
    assert {path.name for path in files} == {path.name for path in (out / "hgrm").iterdir()}
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+\.hgrm", path.name) for path in files)
    totals = sorted(
        int(re.search(r"Total count *= +(\d+)", p.read_text())[1])  # type: ignore[index]
        for p in files
    )
    assert totals == [3000] * 6 + [18000]


def test_a_distribution_is_what_plotters_read() -> None:
    values = np.concatenate([np.arange(1, 1001) * 1000, [10**9]])
    index, counts = np.unique(bucket(values), return_counts=True)
    lines = hgrm.text(index, counts, int(values.max())).splitlines()
    assert lines[0].split() == ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"]
    rows = [line.split() for line in lines[2:] if not line.startswith("#")]
    assert rows[-1] == ["1000000.000", "1.000000000000", "1001"]
    previous = 0.0
    for value, percentile, total, inverse in rows[:-1]:
        rank = max(1, int(np.ceil(float(percentile) * len(values))))
        assert int(total) >= rank
        assert abs(float(value) * 1000 - values[int(total) - 1]) <= 0.0079 * values[int(total) - 1]
        assert float(inverse) == pytest.approx(1 / (1 - float(percentile)), rel=0.01)
        assert float(percentile) >= previous
        previous = float(percentile)
    assert previous > 0.998
    assert [line.split("=")[0].strip() for line in lines[-3:]] == ["#[Mean", "#[Max", "#[Buckets"]


def test_what_does_not_print_is_written_out() -> None:
    assert svg.plain("a<b>\n\x00\u202e\udc80") == "a&lt;b&gt;\\n\\x00\\u202e\\udc80"
    assert len(svg.plain("x" * 999)) == 200


def test_colours_of_a_heat_map() -> None:
    """Those of viridis, which also tell low from high without colours; mixed in between."""
    assert [svg.heat(share) for share in (-1, 0, 0.5, 1, 2)] == [
        "#440154", "#440154", "#21918c", "#fde725", "#fde725",
    ]  # fmt: skip
    assert svg.heat(0.125) == "#402a70"


def some_of_all(logs: Path) -> Path:
    """Messages and topics of two hosts, over a second; one log of several files."""
    for host, boot in (("h1", "b1"), ("h2", "b2")):
        head: dict[str, Any] = {"clock": 10**18, "host": host, "boot_id": boot, "engine": host}
        seq = np.arange(3000)
        ts = 10**9 + seq * 10**6 // 3
        sender, receiver = LogWriter(logs, 1, **head), LogWriter(logs, 2, **head)
        sends(sender, "a", seq, ts=ts)
        receiver.add(Kind.LISTEN, channel="a", chan_seq=0, ts=10**9)
        receives(receiver, "a", seq, ts=ts + 5000 + seq, ref_ts=ts, wake=seq % 3)
        receiver.add(Kind.DROP, bytes=3, ts=10**9 + 10**6)
        receiver.add(Kind.WAKE, 60, flags=USEFUL, batch=50, wake=Wake.SIGNAL, ts=10**9)
        jobs = np.arange(500)
        sender.add(Kind.PUBLISH, 500, channel="t", ts=10**9 + jobs, commit_seq=jobs)
        for kind, later in ((Kind.DELIVER, 1000), (Kind.FIN, 9000)):
            at = {"ts": 10**9 + jobs + later, "ref_ts": 10**9 + jobs, "commit_seq": jobs}
            receiver.add(kind, 500, channel="t:c", attempts=1, **at)
        sender.write()
        receiver.write(files=3)
    return logs


def tables(out: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(out)): path.read_bytes()
        for folder in ("latency_hist", "latency_summary", "audit", "audit_topics", "e2e", "wakeups")
        for path in sorted((out / folder).iterdir())
    }


@pytest.mark.parametrize("processes", [1, 2])
def test_one_pass_gives_what_each_job_gives(
    processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = survey([some_of_all(tmp_path / "logs")])
    once, one_by_one, page = (tmp_path / name for name in ("once", "one by one", "page"))
    report.run(LocalEngine(processes), found, once)
    for job in (latency, audit, e2e, wakeups):
        job.run(LocalEngine(1), found, one_by_one)
    assert len(tables(once)) > 5
    assert tables(once) == tables(one_by_one)

    class Separate(Shared):
        def __init__(self, engine: Any, jobs: Any, survey: Any, found: Any) -> None:
            super().__init__(engine, {}, survey, found)

    monkeypatch.setattr(report, "Shared", Separate)
    report.run(LocalEngine(1), found, page)
    assert (page / "report.html").read_text() == (once / "report.html").read_text()


def test_the_logs_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of an archive twice, since it does not say how wide windows are to be."""
    logs, archive = some_of_all(tmp_path / "logs"), tmp_path / "archive"
    ingest.run(LocalEngine(1), survey([logs]), archive)
    read: list[tuple[str, int]] = []
    chunks = LogReader._all_chunks

    def noted(reader: LogReader) -> Any:
        read.extend((reader.log.log_id, file.part) for file in reader.log.files)
        return chunks(reader)

    monkeypatch.setattr(LogReader, "_all_chunks", noted)
    for place, times in ((logs, 1), (archive, 2)):
        read.clear()
        report.run(LocalEngine(1), survey([place]), tmp_path / f"out{times}")
        assert len(read) == times * len(set(read))
        assert len(set(read)) == 8
    assert tables(tmp_path / "out1") == tables(tmp_path / "out2")
    pages = [(tmp_path / f"out{times}" / "report.html").read_text() for times in (1, 2)]
    assert pages[0] == pages[1]


def test_the_span_of_logs(tmp_path: Path) -> None:
    """Of what is whole in them: definitions have no time, damaged records none to believe."""
    log = LogWriter(tmp_path, 1, clock=10**18)
    receives(log, "a" * 90, np.arange(400), ts=5000 + np.arange(400))
    paths = log.write(files=2)
    flip_bit(paths[1], 3 + 199)
    (found,) = survey([tmp_path]).logs
    assert span(found) == (10**18 + 5000, 10**18 + 5398)
    empty = LogWriter(tmp_path / "empty", 2)
    empty.write()
    (found,) = survey([tmp_path / "empty"]).logs
    assert span(found) is None
    paths[0].unlink()
    assert span(survey([paths[1]]).logs[0]) == (10**18 + 5200, 10**18 + 5398)
