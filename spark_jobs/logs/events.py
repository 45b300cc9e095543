"""Reading the records of an archive by columns, as chunks that the jobs take as they take logs.

Only the columns that a job asks for are decoded, one row group after the other, and what a reader
holds is a batch of each. Page checksums are verified; a row group that cannot be read costs its own
rows, a file whose footer cannot be read all of its own, and both are told instead of raised: a job
over a large archive does not end because of one of its files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from spark_jobs.logs.model import CHUNK_RECORDS, Chunk, LogFile
from spark_jobs.logs.quality import FileReport
from spark_jobs.logs.schema import RECORD
from spark_jobs.places import filesystem


class Columns:
    """Some columns of records, each by itself: in jobs it stands for an array of `schema.RECORD`.

    A name gives that column (the type is that of the record), anything else that indexes an array
    gives those records.
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]], rows: int) -> None:
        self._columns = columns
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, str):
            return self._columns[which]
        chosen = {name: column[which] for name, column in self._columns.items()}
        rows = next(iter(chosen.values())) if chosen else np.arange(self._rows)[which]
        return Columns(chosen, len(rows))


class _Channels:
    """Finds the numbers of a file's channels."""

    def __init__(self, known: Sequence[tuple[int, str]], register: Callable[..., int]) -> None:
        self._numbers = {
            (database, name): register(database, name.encode()) for database, name in known
        }
        self._by_name = {name: number for (_, name), number in self._numbers.items()}
        self.ambiguous = len(self._by_name) < len(self._numbers)
        """Whether a name stands for channels of several databases."""
        self._names: pa.Array[Any] | None = None
        self._of = np.empty(0, dtype=np.int64)

    def numbers(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """`Chunk.channel`: -1 where there is none."""
        column = batch["channel"]
        none = len(column.dictionary)
        indices = column.indices.fill_null(none) if column.null_count else column.indices
        index = indices.to_numpy()
        if self.ambiguous:
            return self._with_database(column.dictionary.to_pylist(), index, batch["database"])
        if self._names is None or not self._names.equals(column.dictionary):
            self._names = column.dictionary  # that of the batch before, nearly always
            found = [self._by_name.get(name, -1) for name in self._names.to_pylist()]
            self._of = np.array([*found, -1], dtype=np.int64)
        return np.asarray(self._of.take(index))

    def _with_database(
        self, names: Sequence[str], index: NDArray[Any], databases: pa.Array[Any]
    ) -> NDArray[np.int64]:
        distinct, database = np.unique(databases.to_numpy(), return_inverse=True)
        table = np.full((len(distinct), len(names) + 1), -1, dtype=np.int64)
        for row, number in enumerate(distinct.tolist()):
            table[row, :-1] = [self._numbers.get((number, name), -1) for name in names]
        return np.asarray(table[database, index])


def _column(batch: pa.RecordBatch, name: str) -> NDArray[Any]:
    """With the type that the record has: a view where the width is the same."""
    kept, wanted = batch[name].to_numpy(), RECORD[name]
    if kept.dtype.itemsize == wanted.itemsize:
        return np.asarray(kept.view(wanted))
    return np.asarray(kept.astype(wanted))


def _sent_ns(batch: pa.RecordBatch) -> NDArray[np.uint64]:
    """``ref_ts``: 0 where there is none."""
    latency = batch["lat_ns"]
    if latency.null_count == len(latency):
        return np.zeros(len(latency), dtype=np.uint64)
    sent = batch["ts"].to_numpy() - latency.fill_null(0).to_numpy()
    if latency.null_count:
        sent *= latency.is_valid().to_numpy(zero_copy_only=False)
    return np.asarray(sent.view(np.uint64))


def _outside(metadata: Any, within: tuple[int, int] | None) -> set[int]:
    """Row groups whose records are all of another time, as their statistics say."""
    if within is None or "event_time" not in metadata.schema.names:
        return set()
    column = metadata.schema.names.index("event_time")
    found = set()
    for group in range(metadata.num_row_groups):
        known = metadata.row_group(group).column(column).statistics
        if known is not None and known.has_min_max:
            first, last = 1000 * known.min_raw, 1000 * known.max_raw + 999
            if last < within[0] or first >= within[1]:
                found.add(group)
    return found


class EventFile:
    """One file of ``events/``, and what became of it.

    After `chunks`: `rows` were read of the `expected` ones (None: the footer cannot be read), and
    `problems` says why there are fewer.
    """

    def __init__(self, system: Any, path: str, name: str) -> None:
        """`path` is that on the file system, `name` is for messages."""
        self._system, self._path, self._name = system, path, name
        self.rows = 0
        self.expected: int | None = None
        self.problems: list[str] = []

    def _lost(self, what: str, error: Exception) -> None:
        why = " ".join(str(error).split()) or type(error).__name__
        self.problems.append(f"{self._name}: {what}: {why}")

    def chunks(
        self,
        fields: Sequence[str],
        clock_ns: int,
        register: Callable[[int, bytes], int],
        within: tuple[int, int] | None = None,
    ) -> Iterator[Chunk]:
        """The records, with those columns of `schema.RECORD` only; `register` numbers a channel.
        Row groups that have none `within` that time (`Log.within`) are passed over.
        """
        # Arrow raises nearly anything at what is not Parquet.
        try:
            file = pyarrow.parquet.ParquetFile(
                self._system.open_input_file(self._path),
                read_dictionary=["channel"],
                page_checksum_verification=True,
            )
        except Exception as error:
            self._lost("cannot be read", error)
            return
        with file:
            try:
                channels = _Channels(json.loads(file.metadata.metadata[b"channels"]), register)
            except Exception as error:
                self._lost("does not name its channels", error)
                return
            self.expected = file.metadata.num_rows
            outside = _outside(file.metadata, within)
            self.rows += sum(file.metadata.row_group(group).num_rows for group in outside)
            groups = [group for group in range(file.num_row_groups) if group not in outside]
            yield from self._groups(file, groups, fields, clock_ns, channels)

    def _groups(
        self,
        file: Any,
        groups: Sequence[int],
        fields: Sequence[str],
        clock_ns: int,
        channels: _Channels,
    ) -> Iterator[Chunk]:
        wanted = [name for name in fields if name not in ("channel", "ref_ts")]
        columns = {*wanted, *(("ts", "lat_ns") if "ref_ts" in fields else ()), "channel"}
        if channels.ambiguous:
            columns.add("database")
        for group in groups:
            begin = self.rows
            try:
                batches = file.iter_batches(
                    CHUNK_RECORDS, row_groups=[group], columns=sorted(columns), use_threads=False
                )
                for batch in batches:
                    found = {name: _column(batch, name) for name in wanted}
                    if "ref_ts" in fields:
                        found["ref_ts"] = _sent_ns(batch)
                    records = Columns(found, batch.num_rows)
                    chunk = Chunk(cast("Any", records), channels.numbers(batch), clock_ns)
                    self.rows += batch.num_rows
                    yield chunk
            except Exception as error:
                lost = file.metadata.row_group(group).num_rows - (self.rows - begin)
                self._lost(f"{lost} records cannot be read", error)


def read_file(
    file: LogFile,
    report: FileReport,
    fields: Sequence[str],
    register: Callable[[int, bytes], int],
    within: tuple[int, int] | None = None,
) -> Iterator[Chunk]:
    """The records of one archived file, with those columns only; `register` numbers a channel. Of
    records that are not `within` that time some may be left out.

    What cannot be read goes from the report's whole records to its damaged ones.
    """
    report.records += file.records
    report.damaged += file.damaged
    report.problems += file.problems
    lost, untold, told = 0, False, 0
    for place in file.events:
        events = EventFile(*filesystem(place), place)
        yield from events.chunks(fields, file.clock_ns, register, within)
        report.problems += events.problems
        if events.expected is None:
            untold = True
        else:
            told += events.expected
            lost += events.expected - events.rows
    # Without its footer a file does not say how much was in it: it is what the others lack.
    lost += max(1, file.records - told) if untold else 0
    report.records -= min(lost, file.records)
    report.damaged += lost
