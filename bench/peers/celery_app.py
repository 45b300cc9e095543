"""The Celery application of `python -m bench --only celery`; $BROKER and $BACKEND say where."""

from __future__ import annotations

import os

from celery import Celery

import pynotify.contrib.kombu  # makes pynotify:// known  # noqa: F401

app = Celery("celery_app", broker=os.environ["BROKER"], backend=os.environ["BACKEND"])
_done: list[int] = []


def _same(number: int) -> int:
    return number


def _write() -> None:
    if not _done:
        _done.append(os.open(os.environ["DONE"], os.O_WRONLY))
    os.write(_done[0], b".")


#: The caller waits for its result.
with_result = app.task(name="with_result")(_same)
#: The caller waits for a byte in the pipe $DONE.
without_result = app.task(name="without_result", ignore_result=True)(_write)
