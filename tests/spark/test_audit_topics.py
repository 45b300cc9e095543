"""What the audit says of topics, beside an account that goes through the records one by one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logwriter import LogWriter

from spark_jobs.audit.topics import BLOCK, BLOCK_BITS, GROUP_BITS
from spark_jobs.cli import main
from spark_jobs.jobs import audit
from spark_jobs.logs.schema import Kind
from spark_jobs.result import JobResult
from spark_jobs.survey import survey

BASE = 1_800_000_000 * 10**9
"""The ids of a segment begin with the time at which it was made."""
FIGURES = ("finished", "finished_twice", "delivered_after", "unfinished", "undelivered")


def publish(log: LogWriter, topic: str, ids: Iterable[int]) -> None:
    ids = np.array([BASE + number for number in ids], dtype=np.uint64)
    log.add(Kind.PUBLISH, len(ids), channel=topic, commit_seq=ids)


def consume(
    log: LogWriter, name: str, ids: Iterable[int], kind: Kind = Kind.FIN, attempts: Any = 1
) -> None:
    """The deliveries, up to that of FIN, or just that record."""
    ids = np.array([BASE + number for number in ids], dtype=np.uint64)
    attempts = np.broadcast_to(attempts, len(ids))
    if kind == Kind.FIN:
        for number in range(1, int(attempts.max(initial=0)) + 1):
            which = ids[attempts >= number]
            log.add(
                Kind.DELIVER, len(which), channel=name, commit_seq=which, attempts=min(number, 255)
            )
    log.add(kind, len(ids), channel=name, commit_seq=ids, attempts=np.minimum(attempts, 255))


def run(engine: Any, logs: Path) -> JobResult:
    return audit.run(engine, survey([logs]), logs / "out")


def topics_of(result: JobResult) -> dict[str, tuple[int, ...]]:
    return {
        f"{row['topic']}:{row['channel']}": tuple(row[name] for name in FIGURES)
        for row in result.further["topics"]
    }


def test_what_was_finished_once_needs_no_second_look(
    local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many blocks, and groups of blocks; two publishers, two consumers, some of it twice."""
    count = 3 * BLOCK
    ids = np.concatenate([np.arange(count), (1 << BLOCK_BITS + GROUP_BITS) + np.arange(count)])
    for number in (0, 1):
        publisher = LogWriter(tmp_path, 1 + number)
        publish(publisher, "jobs", ids[number::2])
        publisher.write()
        consumer = LogWriter(tmp_path, 3 + number)
        consume(consumer, "jobs:work", ids[number::2], attempts=1 + ids[number::2] % 3)
        consume(consumer, "jobs:watch", ids[number::2])
        consumer.write(files=2)
    monkeypatch.setattr(audit, "_differences", None)
    result = run(local, tmp_path)
    assert topics_of(result) == {
        "jobs:watch": (2 * count, 0, 0, 0, 0),
        "jobs:work": (2 * count, 0, 0, 0, 0),
    }
    assert not result.violation
    assert result.rows == []


def test_faults_are_found_exactly(local: Any, tmp_path: Path) -> None:
    count = 5 * BLOCK
    ids = np.arange(count)
    places = np.random.default_rng(3).permutation(count - 1) + 1
    twice, after, left, unseen = places[:11], places[11:18], places[18:23], places[23:26]
    publisher = LogWriter(tmp_path, 1)
    publish(publisher, "jobs", ids)
    publish(publisher, "others", [count + 1])
    publisher.write()
    consumer, other = LogWriter(tmp_path, 2), LogWriter(tmp_path, 3)
    consume(consumer, "jobs:work", np.setdiff1d(ids, np.concatenate([left, unseen])))
    consume(consumer, "jobs:work", left, Kind.DELIVER)
    consume(other, "jobs:work", twice, Kind.FIN, 2)
    consume(other, "jobs:work", after, Kind.DELIVER, 2)
    consume(other, "jobs:late", ids[2 * BLOCK + 7 :])
    consume(other, "silent:work", [count + 2])
    for log in (consumer, other):
        log.write()
    result = run(local, tmp_path)
    # The second time round a message is delivered, too, before it is finished again.
    assert topics_of(result) == {
        "jobs:work": (count - 8, 11, 18, 8, 3),
        "jobs:late": (3 * BLOCK - 7, 0, 0, 0, 0),
        "silent:work": (1, 0, 0, 0, 0),
    }
    unpublished = {row["topic"]: row["unpublished"] for row in result.further["topics"]}
    assert unpublished == {"jobs": 0, "silent": 1}
    assert result.further["topics"][0]["channel"] == "work", "the worst comes first"
    assert result.violation


def test_what_is_not_finished_is_no_violation(local: Any, tmp_path: Path) -> None:
    publisher, consumer = LogWriter(tmp_path, 1), LogWriter(tmp_path, 2)
    publish(publisher, "jobs", range(4 * BLOCK))
    consume(consumer, "jobs:work", [BLOCK + 5])
    publisher.write()
    consumer.write()
    result = run(local, tmp_path)
    left = 3 * BLOCK - 6
    assert topics_of(result) == {"jobs:work": (1, 0, 0, left, left)}
    assert not result.violation


def test_as_many_but_others(local: Any, tmp_path: Path) -> None:
    log = LogWriter(tmp_path, 1)
    publish(log, "jobs", [1, 2])
    consume(log, "jobs:work", [1, 3])
    log.write()
    result = run(local, tmp_path)
    assert topics_of(result) == {"jobs:work": (2, 0, 0, 1, 1)}
    assert [row["unpublished"] for row in result.further["topics"]] == [1]


def test_a_log_that_is_incomplete_proves_nothing_missing(local: Any, tmp_path: Path) -> None:
    publisher, consumer = LogWriter(tmp_path, 1), LogWriter(tmp_path, 2)
    publish(publisher, "jobs", range(10))
    consume(consumer, "jobs:work", range(5))
    publisher.write()
    consumer.write(dropped=1)
    result = run(local, tmp_path)
    assert topics_of(result) == {"jobs:work": (5, 0, 0, None, None)}
    assert not result.violation
    twice = LogWriter(tmp_path, 3)
    consume(twice, "jobs:work", [4], Kind.FIN, 1)
    twice.write()
    assert run(local, tmp_path).violation, "that a record is there needs no other log"


def test_a_record_without_its_channel_is_of_none(local: Any, tmp_path: Path) -> None:
    """Its writer had no memory for the name."""
    log = LogWriter(tmp_path, 1)
    publish(log, "jobs", [1])
    log.add(Kind.FIN, 2, commit_seq=BASE + 1, attempts=1)
    consume(log, "jobs:work", [1])
    log.write()
    assert topics_of(run(local, tmp_path)) == {"jobs:work": (1, 0, 0, 0, 0)}


def test_255_attempts_stand_for_more(local: Any, tmp_path: Path) -> None:
    log = LogWriter(tmp_path, 1)
    publish(log, "jobs", [1])
    consume(log, "jobs:work", [1], Kind.FIN, 300)
    log.write()
    result = run(local, tmp_path)
    assert topics_of(result) == {"jobs:work": (1, 0, 0, 0, 0)}
    assert not result.violation


def naive(records: list[tuple[str, int, str, int]]) -> dict[str, tuple[int, ...]]:
    """(kind, message, queue, attempts), in any order."""
    published = {message for kind, message, _, _ in records if kind == "publish"}
    found = {}
    for queue in {queue for kind, _, queue, _ in records if kind != "publish"}:
        own = [record for record in records if record[2] == queue]
        finished: dict[int, list[int]] = {}
        delivered: dict[int, list[int]] = {}
        for kind, message, _, attempts in own:
            kept = finished if kind == "finish" else delivered
            kept.setdefault(message, []).append(attempts)
        first = min(message for _, message, _, _ in own)
        left = {message for message in published if message >= first} - set(finished)
        found[queue] = (
            len(finished),
            sum(len(times) > 1 for times in finished.values()),
            sum(max(delivered.get(each, [0])) > min(by) for each, by in finished.items()),
            len(left),
            len(left - set(delivered)),
        )
    return found


@pytest.mark.parametrize("seed", range(12))
def test_random_logs(local: Any, tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    spread = int(random.choice([50, 3 * BLOCK, 5 << BLOCK_BITS + GROUP_BITS]))
    logs = [LogWriter(tmp_path, 1 + number) for number in range(3)]
    records = []
    for _ in range(int(random.integers(50, 400))):
        message, attempts = int(random.integers(spread)), int(random.integers(1, 4))
        queue = f"t:{random.choice(['a', 'b'])}"
        log = logs[int(random.integers(3))]
        kind = str(random.choice(["publish", "deliver", "finish"], p=[0.4, 0.35, 0.25]))
        if kind == "publish":
            publish(log, "t", [message])
        else:
            one = Kind.DELIVER if kind == "deliver" else Kind.FIN
            ids = np.array([BASE + message], dtype=np.uint64)
            log.add(one, channel=queue, commit_seq=ids, attempts=attempts)
        records.append((kind, message, "" if kind == "publish" else queue, attempts))
    for log in logs:
        log.write()
    assert topics_of(run(local, tmp_path)) == naive(records)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = LogWriter(tmp_path / "logs", 1)
    publish(log, "jobs", range(3))
    consume(log, "jobs:work", range(3))
    consume(log, "jobs:work", [1], Kind.DELIVER, 2)
    log.write()
    given = ["audit", str(tmp_path / "logs"), "--overwrite", "--out", str(tmp_path / "out")]
    assert main(given) == 2
    shown = capsys.readouterr().out
    assert "delivered after" in shown
    assert "work" in shown
    assert main([*given, "--channel", "play"]) == 0
