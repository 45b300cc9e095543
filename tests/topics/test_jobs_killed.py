"""Jobs whose processes are killed all the time: `killed_jobs.py`, for a short and a longer time."""

from __future__ import annotations

from pathlib import Path

import killed_jobs
import pytest

import pynotify


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "seconds", [pytest.param(4, id="short"), pytest.param(50, id="long", marks=pytest.mark.full)]
)
def test_nothing_is_lost_beside_an_abandoned_channel(
    seconds: int, segment_name: str, tmp_path: Path
) -> None:
    outcomes = killed_jobs.run(seconds, segment_name, tmp_path / "jobs")
    for each in outcomes:
        assert not each.lost
        assert not each.doubled
        assert each.kills > seconds
        assert each.dead > 0
        assert each.republished <= 5 * each.kills
    # That of the other queue is what its publisher is ahead of its workers, when it is looked at.
    assert outcomes[0].most_on_disk > 0


def test_what_is_lost_or_doubled_is_found(segment_name: str, tmp_path: Path) -> None:
    """The trial itself: a job that was told and is nowhere, one that was finished twice."""
    queue = killed_jobs.Queue(segment_name, tmp_path / "jobs", abandoned=True)
    try:
        queue.close()
        with (tmp_path / "jobs" / "told").open("a") as told:
            told.write("p 1000000 1\n")
        with (tmp_path / "jobs" / "done.0").open("a") as done:
            done.write("f 2000000 1\nf 2000000 1\n")
        queue.verify()
    finally:
        pynotify.unlink(segment_name, force=True, missing_ok=True)
    assert 1000000 in queue.outcome.lost
    assert queue.outcome.doubled == {(2000000, 1)}
