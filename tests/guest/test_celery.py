"""Celery's prefork children, in which SIGUSR1 means that the soft time limit is over."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serving import APPS, Notifier, Server, check_wake_ups
from sessions import NewWorker

Send = Callable[..., None]


def send_here(task: str, *arguments: Any) -> None:
    import celery_listener

    celery_listener.send(task, *arguments)


@pytest.fixture
def environment(directory: Path, engine_name: str) -> dict[str, str]:
    return {"SEGMENT": engine_name, "BROKER": str(directory / "broker")}


@pytest.fixture
def send(new_worker: NewWorker, directory: Path, environment: dict[str, str]) -> Send:
    """Send a task to the worker."""
    paths = os.pathsep.join([str(APPS), os.environ.get("PYTHONPATH", "")])
    client = new_worker(PYTHONPATH=paths, JOURNAL=str(directory), **environment)
    return lambda *task: client.call(send_here, *task)


@pytest.fixture
def celery(serve: Callable[..., Server], environment: dict[str, str]) -> Server:
    """A worker with one prefork child."""
    return serve(
        "celery", "--app", "celery_listener", "worker", "--pool", "prefork", "--concurrency", "1",
        "--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO",
        **environment,
    )  # fmt: skip


@pytest.mark.parametrize("real_time", [True, False], ids=["real-time", "sigusr1"])
def test_soft_time_limit(celery: Server, send: Send, notifier: Notifier, real_time: bool) -> None:
    """The limit ends a task that runs too long, and a wake-up does not.

    With the default signal the two may meet, and a limit be lost: there is a warning, once.
    """
    send("hear", real_time, 3)
    (pid,) = celery.await_processes("listening", 1)
    check_wake_ups(celery, notifier, ["1", "2", "3"])
    celery.await_processes("returned", 1)

    send("hear_for_ever", real_time)
    celery.wait_until(lambda: celery.journal("listening")[pid][1:], "the second task listens")
    celery.wait_until(notifier.all_asleep, "it sleeps")
    notifier.notify(*map(str, range(4, 100)))
    celery.await_processes("limit", 1)

    send("hear", real_time, 1)
    celery.wait_until(lambda: celery.journal("listening")[pid][2:], "the third task listens")
    check_wake_ups(celery, notifier, ["100"])
    celery.wait_until(lambda: celery.journal("returned")[pid][1:], "the third task returns")
    assert celery.journal("heard") == {pid: [str(number) for number in range(1, 101)]}
    assert celery.journal("listening") == {pid: ["hear", "hear_for_ever", "hear"]}
    assert celery.said().count("Celery's soft time limit") == (0 if real_time else 1)
    celery.kill()  # a shutdown takes it several seconds
