"""Logs read on this host, without Spark: in this process, or in a few that it forks.

1. Little is read here at once. Of more, each processor has a process, which gets whole logs and
   sends back batches of partial results.
2. A process that died is an error that names its signal. What ends this process ends the others:
   they have nowhere left to send to.
3. A program with several threads is not forked: it reads by itself. So do those that read or write
   in an object store: its client has threads, and does not outlive a fork.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from spark_jobs.engine.base import Reduced, Work, split
from spark_jobs.engine.partials import (
    JOB,
    Jobs,
    aggregated,
    aggregated_all,
    columns_of,
    deal,
    pieces,
    schema_of,
    schema_of_all,
)
from spark_jobs.engine.progress import SHOWN_EVERY_S, Count, Progress
from spark_jobs.errors import CannotRunError
from spark_jobs.logs.model import Log, Survey
from spark_jobs.places import is_local

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

PROCESS_BYTES = 64 << 20
"""So much is read here in the time that a process more costs, several times over."""

_FORK = multiprocessing.get_context("fork")


Read = Callable[[str, Count], Iterator[pa.RecordBatch]]
"""The batches of one log, as JSON."""


def _batches(texts: Sequence[str], read: Read, count: Count) -> Iterator[pa.RecordBatch]:
    for text in texts:
        yield from read(text, count)


def _serve(
    to: Connection,
    inherited: Sequence[Connection],
    batches: Callable[[], Iterator[pa.RecordBatch]],
) -> None:
    """In a process of its own. An empty message ends what it sends, or an exception does."""
    for each in inherited:  # the reader of another's messages is gone when the parent is
        each.close()
    for signo in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signo, signal.SIG_DFL)
    with contextlib.suppress(BrokenPipeError):
        try:
            for batch in batches():
                to.send(batch.serialize().to_pybytes())
            to.send(b"")
        except BrokenPipeError:
            raise
        except Exception as error:
            to.send(error)


class _Readers:
    """Processes that read, each a part of the logs."""

    def __init__(
        self,
        parts: Sequence[Sequence[str]],
        read: Read,
        progress: Progress,
    ) -> None:
        self._running: dict[Connection, BaseProcess] = {}
        self._progress = progress
        for number, part in enumerate(parts):
            ours, theirs = _FORK.Pipe(duplex=False)
            count = progress.counter(number)
            batches = partial(_batches, part, read, count)
            arguments = (theirs, [*self._running, ours], batches)
            process = _FORK.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._running[ours] = process

    def messages(self) -> Iterator[bytes]:
        """The messages of all processes, as they come. Raises what one raised, or that it died."""
        patience = SHOWN_EVERY_S if self._progress.wanted else None
        while self._running:
            self._progress.show()
            for ready in wait(list(self._running), patience):
                assert isinstance(ready, Connection)
                message = self._received(ready)
                if message == b"":
                    self._running.pop(ready).join()
                    ready.close()
                else:
                    yield message

    def _received(self, ready: Connection) -> bytes:
        try:
            message = ready.recv()
        except EOFError:
            process = self._running[ready]
            process.join()
            code = process.exitcode or 0
            how = f"was ended by signal {-code}" if code < 0 else f"exited with status {code}"
            raise CannotRunError(
                f"process {process.pid}, which read a part of the logs, {how}"
            ) from None
        if isinstance(message, Exception):
            raise message
        assert isinstance(message, bytes)
        return message

    def close(self) -> None:
        for connection, process in self._running.items():
            process.kill()
            process.join()
            connection.close()


def _is_remote(survey: Survey, settings: Mapping[str, Any]) -> bool:
    roots = {file.root for log in survey.logs for file in log.files}
    return not all(map(is_local, (*roots, settings.get("root", ""))))


def _processes(survey: Survey, settings: Mapping[str, Any]) -> int:
    if threading.active_count() > 1 or _is_remote(survey, settings):
        return 1
    size = sum(log.size for log in survey.logs)
    return max(1, min(len(os.sched_getaffinity(0)), size // PROCESS_BYTES))


class _LocalFound:
    """All of them, as they came."""

    def __init__(self, batches: list[pa.RecordBatch], schema: pa.Schema) -> None:
        self.schema = schema
        self._batches = batches

    def reduced(self, by: Sequence[str], work: Work, schema: pa.Schema) -> Reduced:
        rows, others = split(self._batches, by[0], self.schema)
        batches = work(rows, 0) if rows.num_rows else ()
        return Reduced(pa.Table.from_batches(batches, schema), others)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class _LocalFoundByAll:
    """The batches of each job, by name, and the rows about files, which belong to all jobs."""

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        self._batches: dict[str | None, list[pa.RecordBatch]] = {}
        for batch in filter(len, batches):
            self._batches.setdefault(batch[JOB][0].as_py(), []).append(batch)

    def of(self, job: str) -> _LocalFound:
        names, schema = columns_of(job), schema_of(job)
        own = [*self._batches.get(job, ()), *self._batches.get(None, ())]
        batches = [
            pa.RecordBatch.from_arrays([batch[name] for name in names], schema=schema)
            for batch in own
        ]
        return _LocalFound(batches, schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._batches.clear()


class LocalEngine:
    """`processes`: how many read at most; as many as there are processors, if it is worth it."""

    def __init__(self, processes: int | None = None) -> None:
        self._processes = processes

    def load(self, job: str, survey: Survey, **settings: Any) -> _LocalFound:
        """As of `Engine`. Raises CannotRunError if a process that read has died."""

        def read(text: str, count: Count) -> Iterator[pa.RecordBatch]:
            return aggregated(text, job, settings, count)

        schema = schema_of(job)
        here = self._processes_for(survey, settings)
        return _LocalFound(
            self._read(job, read, schema, pieces((job,), survey.logs, here), here), schema
        )

    def load_all(self, jobs: Jobs, survey: Survey) -> _LocalFoundByAll:
        """As of `Engine`."""

        def read(text: str, count: Count) -> Iterator[pa.RecordBatch]:
            return aggregated_all(text, jobs, count)

        schema = schema_of_all(jobs)
        here = self._processes_for(survey, {})
        return _LocalFoundByAll(
            self._read("report", read, schema, pieces(jobs, survey.logs, here), here)
        )

    def _processes_for(self, survey: Survey, settings: Mapping[str, Any]) -> int:
        return _processes(survey, settings) if self._processes is None else self._processes

    @staticmethod
    def _read(
        what: str, read: Read, schema: pa.Schema, logs: Sequence[Log], processes: int
    ) -> list[pa.RecordBatch]:
        parts = deal(logs, processes, most=processes)
        records = sum(file.records for log in logs for file in log.files)
        with Progress(what, records, len(parts)) as progress:
            if len(parts) == 1:
                return list(_batches(parts[0], read, progress.counter(0, shows=True)))
            readers = _Readers(parts, read, progress)
            try:
                return [pa.ipc.read_record_batch(each, schema) for each in readers.messages()]
            finally:
                readers.close()
