"""Celery on a segment against Celery on Redis: the same worker, the same tasks.

One caller sends tasks as fast as it can to a worker of four processes; a rate counts from the first
call until the last task is done, or its result is there.  Results come by reply (`rpc://`) on a
segment, and from Redis on Redis.  The tasks do nothing, so what is measured is the way there; the
most of it is Celery's own on both sides.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pynotify
from bench.pairs import alternate
from bench.peers.redis_server import Redis
from bench.settings import Settings

TOPIC = "celery"

_TASKS = 2_000
_PAIRS = 5
_PROCESSES = 4
_PATIENCE = 60.0


class _Side:
    """A worker, and a caller in a process of its own, on one broker."""

    def __init__(self, directory: Path, name: str, broker: str, backend: str) -> None:
        self._pipe = directory / f"{name}.done"
        os.mkfifo(self._pipe)
        self._env = {
            **os.environ,
            "BROKER": broker,
            "BACKEND": backend,
            "DONE": str(self._pipe),
            "PYTHONPATH": str(Path(__file__).parents[1]),
        }
        self._log = directory / f"{name}.log"

    def __enter__(self) -> Self:
        options = ["--concurrency", str(_PROCESSES), "--loglevel", "WARNING"]
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "bench.peers.celery_app",
            "worker",
            *options,
        ]
        with self._log.open("wb") as log:
            self._worker = subprocess.Popen(
                command, env=self._env, stdout=log, stderr=log, start_new_session=True
            )
        caller = [sys.executable, "-m", "bench.peers.celery_caller"]
        self._caller = subprocess.Popen(
            caller, env=self._env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def rate(self, kind: str, tasks: int) -> float:
        """Tasks per second, as the caller says."""
        assert self._caller.stdin is not None
        assert self._caller.stdout is not None
        self._caller.stdin.write(f"{kind} {tasks}\n")
        self._caller.stdin.flush()
        said = self._caller.stdout.readline()
        if not said:
            raise RuntimeError(f"Celery's caller has ended: {self._log.read_text()[-2000:]}")
        return tasks / float(said)

    def __exit__(self, *_: object) -> None:
        for process in (self._caller, self._worker):
            process.send_signal(signal.SIGTERM)
        for process in (self._caller, self._worker):
            process.communicate(timeout=_PATIENCE)


def run(settings: Settings) -> None:
    """Nothing where there is no redis-server, or no Celery."""
    if importlib.util.find_spec("celery") is None or not Redis.available():
        print("celery: not measured, as there is no Celery, or no redis-server with redis-py")
        return
    segment = f"bench-celery-{os.getpid()}"
    with ExitStack() as stack:
        stack.callback(pynotify.unlink, segment, force=True, missing_ok=True)
        redis = Redis(settings.directory)
        redis.prepare()
        stack.callback(redis.dispose)
        ours = _Side(settings.directory, "pynotify", f"pynotify://{segment}", "rpc://")
        peer = _Side(settings.directory, "redis", redis.url, redis.url)
        sides = [stack.enter_context(side) for side in (ours, peer)]
        for kind, name in (("without_result", "tasks"), ("with_result", "tasks with results")):

            def play(side: _Side, kind: str = kind) -> float:
                return side.rate(kind, settings.messages(_TASKS))

            passes: list[Any] = [lambda side=side: play(side) for side in sides]
            values = alternate(passes, settings.pairs(_PAIRS))
            settings.compare(TOPIC, name, "tasks/s", *values, against="Redis", bar=2)
