"""What a job needs of an engine: partial results of logs, brought together by their keys.

A job says how rows of one key are added up, in numpy and Arrow; an engine only sees to it that they
are where they are added up. So every engine gives the same tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.engine.partials import Jobs
from spark_jobs.engine.tables import ordered
from spark_jobs.logs.model import Survey

Work = Callable[[pa.Table, int], Iterator[pa.RecordBatch]]
"""Adds up rows, which are all that there are of their keys; the number is that of the task."""


class Reduced(NamedTuple):
    """`table`: what the work made. `others`: the rows without a key, as they are."""

    table: pa.Table
    others: pa.Table


class Found(Protocol):
    """The partial results of a job. As a context they are kept, for more than one `reduced`."""

    schema: pa.Schema

    def reduced(self, by: Sequence[str], work: Work, schema: pa.Schema) -> Reduced:
        """Rows with the same `by` come to one call of `work`, which yields batches of `schema`.

        Rows without the first of `by` have no key. Calls come in any order, and without rows there
        may be none.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class FoundByAll(Protocol):
    """The partial results of several jobs, kept as a context."""

    def of(self, job: str) -> Found: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class Engine(Protocol):
    """Reads logs."""

    def load(self, job: str, survey: Survey, **settings: Any) -> Found:
        """The partial results of `job` over the surveyed logs; `settings` go to its `Partials`."""
        ...

    def load_all(self, jobs: Jobs, survey: Survey) -> FoundByAll:
        """What several jobs find, in one pass over the logs."""
        ...


class Shared:
    """An engine that has read `survey` for some `jobs` already, and for others asks another one."""

    def __init__(self, engine: Engine, jobs: Jobs, survey: Survey, found: FoundByAll) -> None:
        self._engine = engine
        self._jobs, self._survey, self._found = jobs, survey, found

    def load(self, job: str, survey: Survey, **settings: Any) -> Found:
        """As of `Engine`."""
        if survey is self._survey and self._jobs.get(job) == settings:
            return self._found.of(job)
        return self._engine.load(job, survey, **settings)

    def load_all(self, jobs: Jobs, survey: Survey) -> FoundByAll:
        """As of `Engine`."""
        return self._engine.load_all(jobs, survey)


def split(
    batches: Iterable[pa.RecordBatch], key: str, schema: pa.Schema
) -> tuple[pa.Table, pa.Table]:
    """The rows with that key, and those without; copies nothing where a batch has but one kind."""
    kinds: tuple[list[pa.RecordBatch], ...] = ([], [])
    for batch in batches:
        none = batch[key].null_count
        if 0 < none < batch.num_rows:
            named = batch[key].is_valid()
            kinds[0].append(batch.filter(named))
            kinds[1].append(batch.filter(pc.invert(named)))
        else:
            kinds[none > 0].append(batch)
    return pa.Table.from_batches(kinds[0], schema), pa.Table.from_batches(kinds[1], schema)


def summed(
    found: Found,
    by: Sequence[str],
    how: Callable[[pa.Table], pa.Table],
    order: Sequence[str] | None = None,
) -> Reduced:
    """What `how` makes of rows with all of their keys, in `order` (`by`); of none, the schema."""
    schema = how(found.schema.empty_table()).schema

    def work(rows: pa.Table, _: int) -> Iterator[pa.RecordBatch]:
        yield from how(rows).to_batches()

    table, others = found.reduced(by, work, schema)
    return Reduced(ordered(table, *(by if order is None else order)), others)
