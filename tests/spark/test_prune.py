"""Old days leave an archive, and do not come back."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logwriter import LogWriter, flip_bit, sends

from spark_jobs import prune as pruning
from spark_jobs.archive import layout
from spark_jobs.cli import main
from spark_jobs.jobs import ingest
from spark_jobs.logs import stored
from spark_jobs.prune import prune

DAY_NS = 86_400 * 10**9
FIRST = datetime(2026, 3, 1, tzinfo=UTC)
DAYS = 5


def day(number: int) -> str:
    return (FIRST + timedelta(days=number)).date().isoformat()


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A log for each day, one across the midnight after the first, and one that is damaged."""
    place = tmp_path / "logs"
    clock = int(FIRST.timestamp()) * 10**9
    for number in range(DAYS):
        log = LogWriter(place, 1 + number, clock=clock)
        sends(log, "a", np.arange(100), ts=number * DAY_NS + 1 + np.arange(100))
        log.write()
    across = LogWriter(place, 9, clock=clock)
    sends(across, "a", np.arange(100), ts=DAY_NS - 50 + np.arange(100))
    across.write()
    (place / "bad.pynlog").write_bytes(b"no log")
    return place


@pytest.fixture
def archive(logs: Path, tmp_path: Path) -> Path:
    place = tmp_path / "archive"
    assert main(["ingest", str(logs), "--out", str(place)]) == 0
    return place


def records(place: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    """By day, as a job counts them; but for the file that is no log nothing is damaged."""
    capsys.readouterr()
    arguments = ["timeline", str(place), "--window", "86400", "--overwrite", "--json"]
    assert main([*arguments, "--out", str(place.parent / "out")]) == 0
    found = json.loads(capsys.readouterr().out)
    damaged = [Path(row["file"]).name for row in found["segments"] if row["damaged"]]
    assert damaged == ["bad.pynlog"]
    return {row["window"][:10]: row["n"] for row in found["rows"]}


def files(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}


def test_days_before_one_leave(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(archive)
    said = prune(str(archive), older=day(2), dry_run=True)
    assert files(archive) == before
    assert (said["removed"], said["left"]) == (3, 4)
    assert prune(str(archive), older=day(2)) == said | {"dry_run": False}
    assert records(archive, capsys) == {day(number): 100 for number in range(2, DAYS)}
    left = files(archive)
    assert {name[:22] for name in left if name.startswith("events/")} == {
        f"events/date={day(number)}" for number in range(2, DAYS)
    }
    assert len([name for name in left if name.startswith("channels/")]) == 3
    assert len([name for name in left if name.startswith("quarantine/")]) == 1, "it is of today"
    assert not (archive / "events" / f"date={day(0)}").exists()


def test_a_segment_stays_as_long_as_one_of_its_days(
    archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prune(str(archive), older=day(1))["removed"] == 1
    assert records(archive, capsys)[day(0)] == 50
    assert records(archive, capsys)[day(1)] == 150


def test_what_left_does_not_come_back(
    logs: Path, archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prune(str(archive), older=day(2))
    left = files(archive)
    capsys.readouterr()
    assert main(["ingest", str(logs), "--out", str(archive), "--json"]) == 0
    totals = json.loads(capsys.readouterr().out)["totals"]
    assert (totals["archived"], totals["unchanged"], totals["pruned"]) == (0, 3, 3)
    assert files(archive) == left
    prune(str(archive), older=day(0))
    assert layout.pruned_before(archive) == day(2), "no prune makes it earlier"


def test_the_oldest_days_leave_until_the_rest_is_small_enough(archive: Path) -> None:
    rows = layout.segment_rows(archive)[0]
    sizes = {max(map(stored.day_of, row["events"])): 0 for row in rows if row["events"]}
    for row in rows:
        if row["events"]:
            sizes[max(map(stored.day_of, row["events"]))] += row["bytes"]
    last_two = sizes[day(3)] + sizes[day(4)]
    found = prune(str(archive), most=last_two)
    assert (found["first_day"], found["left_bytes"]) == (day(3), last_two)
    assert prune(str(archive), most=last_two)["removed"] == 0
    assert prune(str(archive), most=last_two - 1)["first_day"] == day(4)
    assert prune(str(archive), most=0)["left_bytes"] == 0


def test_today_stays_whatever_its_size(
    archive: Path, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing that is logged later that day could be archived."""
    monkeypatch.setattr(pruning, "_today", lambda: day(DAYS - 1))
    assert prune(str(archive), most=0)["first_day"] == day(DAYS - 1)
    more = LogWriter(logs, 20, clock=int(FIRST.timestamp()) * 10**9)
    sends(more, "a", np.arange(10), ts=(DAYS - 1) * DAY_NS + 5000 + np.arange(10))
    more.write()
    assert main(["ingest", str(logs), "--out", str(archive)]) == 0
    assert prune(str(archive), most=0)["left"] == 3, "two of today, and the file that is no log"


@pytest.mark.parametrize("after", range(1, 9))
def test_killed_in_between(
    after: int, archive: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before each removal: readers find what is whole, and the next prune removes the rest."""
    expected = {day(number): 100 for number in range(3, DAYS)}
    real, calls = pruning._delete, 0

    def delete(system: Any, path: str) -> None:
        nonlocal calls
        calls += 1
        if calls == after:
            raise KeyboardInterrupt
        real(system, path)

    with monkeypatch.context() as patch:
        patch.setattr(pruning, "_delete", delete)
        with pytest.raises(KeyboardInterrupt):
            prune(str(archive), older=day(3))
    found = records(archive, capsys)
    assert expected.items() <= found.items()
    assert sum(found.values()) % 100 == 0, "segments are there whole, or not at all"
    prune(str(archive), older=day(3))
    assert records(archive, capsys) == expected
    assert len([name for name in files(archive) if name.startswith("events/")]) == 2


def test_an_earlier_state_that_a_killed_ingest_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes with its day; the segment, and the copy of its damaged file, stay."""
    logs, place = tmp_path / "logs", tmp_path / "archive"
    log = LogWriter(logs, 1, clock=int(FIRST.timestamp()) * 10**9)
    for last in (0, 3):
        sends(log, "a", np.arange(100) + 100 * last, ts=last * DAY_NS + 1 + np.arange(100))
        (path,) = log.write(sealed=last == 3)
        flip_bit(path, 7)
        monkeypatch.setattr(ingest, "_remove_earlier", lambda *_: None)
        assert main(["ingest", str(logs), "--out", str(place), "--overwrite"]) == 0
    assert len(list((place / "segments").iterdir())) == 2
    found = prune(str(place), older=day(2))
    assert (found["removed"], found["left"]) == (0, 1)
    assert len(list((place / "segments").iterdir())) == 1
    assert len(list((place / "quarantine").iterdir())) == 1
    assert len(list(place.rglob("events/*/*/*"))) == 2, "of both days of the segment that stays"


def test_on_the_command_line(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune", str(archive), "--older", "2026-03-03", "--dry-run"]) == 0
    assert capsys.readouterr().out.rpartition("would remove")[2].startswith(" 3 segments, ")
    assert main(["prune", str(archive), "--older", "0d", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["removed"], found["first_day"]) == (6, datetime.now(UTC).date().isoformat())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "say what is old"),
        (["--older", "soon"], "soon is no age such as 30d"),
        (["--older", "9999-01-31"], "9999-01-31 is yet to come"),
        (["--most", "much"], "much is no size such as 100GB"),
    ],
)
def test_what_does_not_fit_is_said(
    arguments: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="1"):
        main(["prune", str(tmp_path), *arguments])
    assert problem in capsys.readouterr().err


def test_only_archives_are_pruned(
    logs: Path, archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prune", str(logs), "--older", "1d"]) == 1
    assert "is no archive: ingest makes one" in capsys.readouterr().err
    row = min((archive / "segments").iterdir())
    row.write_bytes(b"damaged")
    before = files(archive)
    assert main(["prune", str(archive), "--older", "1d", "--json"]) == 1
    assert "Nothing was removed" in json.loads(capsys.readouterr().out)["error"]
    assert files(archive) == before
