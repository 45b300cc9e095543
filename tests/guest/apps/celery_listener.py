"""A Celery application whose tasks listen, woken by a real-time signal, or by what is the default.

The broker is a folder, since one in memory would not reach another process.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from journal import note

import pynotify

SEGMENT = os.environ["SEGMENT"]
_FOLDER = Path(os.environ["BROKER"])
_UNSENT = _FOLDER / "unsent"
_UNSENT.mkdir(parents=True, exist_ok=True)

app = Celery(broker="filesystem://")
app.conf.update(
    broker_connection_retry_on_startup=False,
    broker_transport_options={
        "data_folder_in": str(_FOLDER),
        "data_folder_out": str(_UNSENT),
        "control_folder": str(_FOLDER / "control"),
        "polling_interval": 0.02,
    },
    task_ignore_result=True,
    worker_enable_remote_control=False,
)


def send(task: str, *arguments: Any) -> None:
    """A worker would read a file that is there and not yet written."""
    app.tasks[f"{__name__}.{task}"].delay(*arguments)
    for path in _UNSENT.iterdir():
        path.rename(_FOLDER / path.name)


def _hear(task: str, real_time: bool, count: int | None) -> None:
    with pynotify.connect(SEGMENT, wakeup=signal.SIGRTMIN + 4 if real_time else None) as conn:
        conn.listen("c")
        note("listening", task)
        for message in conn.notifies(stop_after=count):
            note("heard", message.payload)


@app.task
def hear(real_time: bool, count: int) -> None:
    """Returns after so many messages."""
    _hear("hear", real_time, count)
    note("returned")


@app.task(soft_time_limit=1)
def hear_for_ever(real_time: bool) -> None:
    """Ended by its soft time limit: Celery sends SIGUSR1, whose handler raises."""
    try:
        _hear("hear_for_ever", real_time, None)
    except SoftTimeLimitExceeded:
        note("limit")
