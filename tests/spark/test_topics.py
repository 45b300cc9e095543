"""What processes with topics log, and what the jobs make of it, beside their own accounts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pynotify
from forking import ForkedChild
from receiving import PATIENCE, wait_until
from sessions import EngineFactory
from spark_jobs.jobs import audit, e2e, wakeups
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import RECORD, USEFUL, Kind, Wake
from spark_jobs.survey import survey

MESSAGES = 300
NOTHING = np.empty(0, dtype=RECORD)
CHANNELS = ("bill", "mail#ephemeral")
HASTY = 11
"""So many are taken by a consumer that lets them time out, before the others come."""


@dataclass(frozen=True)
class Account:
    """What a consumer's process says: of each message how often, and that it took no longer."""

    attempts: dict[int, int]
    at_most_ns: dict[int, int]
    stats: pynotify.ChannelStats


def consume(name: str, log: Path, channel_name: str) -> Account:
    """Finish every message, half of them in transactions; requeue each seventh once."""
    attempts, at_most = {}, {}
    with pynotify.connect(name, latency_log=log) as conn:
        channel = conn.topic("orders").channel(channel_name)
        hasty = channel.consumer(max_in_flight=HASTY, msg_timeout=0.05)
        for _ in range(HASTY):
            hasty.get(PATIENCE)
        consumer = channel.consumer()
        while len(attempts) < MESSAGES:
            message = consumer.get(PATIENCE)
            number, sent = (int(word) for word in message.body.split())
            if message.attempts == 1 and number % 7 == 0:
                message.requeue()
                continue
            if number % 2:
                message.finish()
            else:
                with conn.transaction():
                    message.finish()
            identity = int(message.id, 16)
            attempts[identity] = message.attempts
            at_most[identity] = time.monotonic_ns() - sent
        return Account(attempts, at_most, channel.stats())


def records(log: Path, kind: Kind) -> dict[str, Any]:
    """By topic:channel."""
    found: dict[str, list[Any]] = {}
    for one in survey([log]).logs:
        reader = LogReader(one)
        for chunk in reader.chunks():
            for at, (_database, name) in enumerate(reader.channels):
                which = (chunk.channel == at) & (chunk.records["kind"] == kind)
                found.setdefault(name, []).append(chunk.records[which])
    return {name: np.concatenate(rows) for name, rows in found.items()}


def test_topics_of_real_processes(local: Any, make_engine: EngineFactory, tmp_path: Path) -> None:
    log = tmp_path / "logs"
    log.mkdir(mode=0o700)
    engine = make_engine()
    with engine.connect(latency_log=log) as conn:
        topic = conn.topic("orders")
        for name in CHANNELS:
            topic.channel(name)
        for number in range(MESSAGES):
            topic.publish(f"{number} {time.monotonic_ns()}")
        children = [
            ForkedChild(lambda name=name: consume(engine.name, log, name)) for name in CHANNELS
        ]
        accounts = {
            f"orders:{name}": child.result() for name, child in zip(CHANNELS, children, strict=True)
        }

    finished, delivered = records(log, Kind.FIN), records(log, Kind.DELIVER)
    published = records(log, Kind.PUBLISH)["orders"]
    for name, account in accounts.items():
        rows = finished[name]
        assert {row["commit_seq"]: row["attempts"] for row in rows} == account.attempts
        assert len(rows) == MESSAGES
        took = rows["ts"].astype(np.int64) - rows["ref_ts"].astype(np.int64)
        bounds = [account.at_most_ns[identity] for identity in rows["commit_seq"].tolist()]
        assert (took > 0).all()
        assert (took <= bounds).all()
        assert len(delivered[name]) == sum(account.attempts.values())
        assert set(published["commit_seq"].tolist()) == set(account.attempts)

    found = survey([log])
    result = e2e.run(local, found, tmp_path / "e2e")
    rows = {f"{row['topic']}:{row['channel']}": row for row in result.rows}
    assert set(rows) == set(accounts)
    for name, account in accounts.items():
        row = rows[name]
        assert (row["finished"], row["max_attempts"]) == (MESSAGES, max(account.attempts.values()))
        assert row["mean_attempts"] == pytest.approx(np.mean(list(account.attempts.values())))
        assert (row["requeued"], row["timed_out"]) == (
            account.stats.requeued,
            account.stats.timed_out,
        )
        assert row["requeued"] >= MESSAGES // 7 - HASTY
        assert row["timed_out"] >= HASTY
        assert row["delivered"] == sum(account.attempts.values())
        assert 0 < row["wait_p50_ns"] <= row["wait_max_ns"] <= max(account.at_most_ns.values())
        assert 0 < row["service_p50_ns"] <= row["service_max_ns"] <= row["max_ns"]
    assert result.totals == {"negative": 0, "unknown": 0, "other_clock": 0}
    # Topics owe no notification: of listeners the audit has nothing to say.
    checked = audit.run(local, found, tmp_path / "audit")
    assert (checked.rows, checked.violation) == ([], False)
    figures = ("finished", "finished_twice", "delivered_after", "unfinished", "unpublished")
    assert {
        f"{row['topic']}:{row['channel']}": tuple(row[name] for name in figures)
        for row in checked.further["topics"]
    } == dict.fromkeys(accounts, (MESSAGES, 0, 0, 0, 0))


def take_until_the_end(name: str, log: Path) -> None:
    """A thread that sleeps in get()."""
    with pynotify.connect(name, latency_log=log) as conn:
        consumer = conn.topic("jobs").channel("work").consumer()
        for message in iter(lambda: consumer.get(PATIENCE), None):
            message.finish()
            if message.body == b"end":
                return


def take_from_an_event_loop(name: str, log: Path) -> None:
    """The loop sleeps on the consumer's descriptor."""

    async def run() -> None:
        async with (
            pynotify.AsyncConnection.connect(name, latency_log=log) as conn,
            conn.topic("jobs").channel("work").consumer() as consumer,
        ):
            async for message in consumer:
                await message.finish()
                if message.body == b"end":
                    return

    asyncio.run(run())


@pytest.mark.parametrize(
    ("take", "why"), [(take_until_the_end, Wake.SIGNAL), (take_from_an_event_loop, Wake.FD)]
)
def test_sleeps_of_consumers(
    take: Callable[[str, Path], None],
    why: Wake,
    local: Any,
    make_engine: EngineFactory,
    tmp_path: Path,
) -> None:
    log = tmp_path / "logs"
    log.mkdir(mode=0o700)
    engine = make_engine()
    with engine.connect() as conn:
        topic = conn.topic("jobs")
        channel = topic.channel("work")
        child = ForkedChild(lambda: take(engine.name, log))

        def has_slept() -> bool:
            """Sends one message more; whether one of those so far ended a sleep."""
            topic.publish("x")
            wait_until(lambda: channel.stats().depth == 0, "it was taken")
            if not any(log.rglob("*.pynlog")):  # it is not open yet, and has begun no log
                return False
            return any((records(log, Kind.WAKE).get("jobs:work", NOTHING)["wake"] == why).tolist())

        wait_until(has_slept, "a consumer sleeps, and a message ends that")
        topic.publish("end")
        child.result()
    wakes, delivered = (records(log, kind)["jobs:work"] for kind in (Kind.WAKE, Kind.DELIVER))
    useful = wakes[wakes["flags"] == USEFUL]
    assert (useful["batch"] >= 1).all()
    woken = delivered[delivered["wake"] != Wake.NONE]
    assert woken["wake"].tolist() == useful["wake"].tolist(), "the first that each of them found"
    assert (useful["ts"] <= woken["ts"]).all()
    (row,) = wakeups.run(local, survey([log]), tmp_path / "wakeups").rows
    assert (row["wakes"], row["consumer_wakes"]) == (0, len(wakes))
    assert row["useful_consumer_wakes"] == len(useful)
