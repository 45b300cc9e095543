"""Reading the records of an archive by columns, as chunks that the jobs take as they take logs.

Only the columns that a job asks for are decoded, one row group after the other, and what a reader
holds is a batch of each. Page checksums are verified; a row group that cannot be read costs its own
rows, a file whose footer cannot be read all of its own, and both are told instead of raised: a job
over a large archive does not end because of one of its files.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from spark_jobs.logs.model import CHUNK_RECORDS, Chunk, LogFile
from spark_jobs.logs.quality import FileReport
from spark_jobs.logs.schema import RECORD
from spark_jobs.logs.stored import Piece, where_now
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
        if len(column) < none:  # a part of a file that many logs share
            column = column.cast(pa.string()).dictionary_encode()
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


class _Shared:
    """A file that many segments are in, and the row group of it that was decoded last."""

    def __init__(self, place: str, columns: tuple[str, ...]) -> None:
        self.place, self.columns = place, columns
        self.file = _opened(place)
        sizes = [self.file.metadata.row_group(each).num_rows for each in range(self.groups)]
        self.ends: NDArray[np.int64] = np.cumsum(sizes)
        self._group = -1
        self._rows: Any = None

    @property
    def groups(self) -> int:
        return int(self.file.num_row_groups)

    def rows(self, group: int) -> pa.RecordBatch:
        """All of that row group."""
        if group != self._group:
            self._group = -1
            table = self.file.read_row_group(group, list(self.columns), use_threads=False)
            (self._rows,) = table.combine_chunks().to_batches()
            self._group = group
        return self._rows


class _Last(threading.local):
    """The file that this thread read last: logs that are neighbours there are read one after the
    other.
    """

    shared: _Shared | None = None


_last = _Last()


def _shared_at(place: str, columns: tuple[str, ...]) -> _Shared:
    found = _last.shared
    if found is None or (found.place, found.columns) != (place, columns):
        _last.shared = None
        _last.shared = found = _Shared(place, columns)
    return found


def _opened(place: str) -> Any:
    system, path = filesystem(place)
    return pyarrow.parquet.ParquetFile(
        system.open_input_file(path),
        read_dictionary=["channel"],
        page_checksum_verification=True,
    )


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


class _Day:
    """The records of a segment of one day, and what became of them.

    After `chunks`: `rows` were read of the `expected` ones (None: the footer cannot be read), and
    `problems` says why there are fewer.
    """

    def __init__(self, file: LogFile, piece: Piece, fields: Sequence[str]) -> None:
        self._file, self._piece = file, piece
        self._fields = fields
        self._wanted = [name for name in fields if name not in ("channel", "ref_ts")]
        self.rows = 0
        self.expected: int | None = None
        self.problems: list[str] = []
        self._passed = 0
        """Rows of the piece that were read, left out, or lost."""
        self._gone = False

    def _lost(self, what: str, error: Exception) -> None:
        why = " ".join(str(error).split()) or type(error).__name__
        system, path = filesystem(self._piece.place)
        self._gone = not system.get_file_info(path).is_file
        self.problems.append(f"{self._piece.place}: {what}: {why}")

    def chunks(
        self, register: Callable[[int, bytes], int], within: tuple[int, int] | None = None
    ) -> Iterator[Chunk]:
        """The records, with those fields only; `register` numbers a channel. Row groups that have
        none `within` that time (`Log.within`) are passed over.

        If the file was replaced by another one meanwhile, it goes on there where it was.
        """
        while True:
            problems = len(self.problems)
            self._gone = False
            yield from self._of_piece(register, within)
            now = (
                where_now(self._file.root, self._file.segment, self._piece) if self._gone else None
            )
            if now is None:
                return
            self._piece = now
            del self.problems[problems:]

    def _of_piece(
        self, register: Callable[[int, bytes], int], within: tuple[int, int] | None
    ) -> Iterator[Chunk]:
        # Arrow raises nearly anything at what is not Parquet.
        piece = self._piece
        try:
            shared = (
                _shared_at(piece.place, self._columns(shared=True)) if piece.is_shared else None
            )
            file = shared.file if shared is not None else _opened(piece.place)
        except Exception as error:
            self._lost("cannot be read", error)
            return
        try:
            try:
                said = piece.channels or file.metadata.metadata[b"channels"]
                channels = _Channels(json.loads(said), register)
            except Exception as error:
                self._lost("does not name its channels", error)
                return
            if shared is not None:
                yield from self._shared_rows(shared, channels, within)
            else:
                yield from self._groups(file, channels, within)
        finally:
            if shared is None:
                file.close()

    def _columns(self, *, shared: bool) -> tuple[str, ...]:
        of_time = ("ts", "lat_ns") if "ref_ts" in self._fields else ()
        of_database = ("database",) if shared else ()
        return tuple(sorted({*self._wanted, *of_time, "channel", *of_database}))

    def _chunk(self, batch: pa.RecordBatch, channels: _Channels) -> Chunk:
        found = {name: _column(batch, name) for name in self._wanted}
        if "ref_ts" in self._fields:
            found["ref_ts"] = _sent_ns(batch)
        records = Columns(found, batch.num_rows)
        return Chunk(cast("Any", records), channels.numbers(batch), self._file.clock_ns)

    def _shared_rows(
        self, shared: _Shared, channels: _Channels, within: tuple[int, int] | None
    ) -> Iterator[Chunk]:
        """All are in one row group."""
        self.expected = count = self._piece.count or 0
        group = int(np.searchsorted(shared.ends, self._piece.first, side="right"))
        if group in _outside(shared.file.metadata, within):
            self.rows += count - self._passed
            self._passed = count
            return
        try:
            rows = shared.rows(group)
            begin = self._piece.first - (int(shared.ends[group - 1]) if group else 0)
            if begin + count > rows.num_rows:
                raise ValueError(f"it has {rows.num_rows - begin} of {count} rows")
            while self._passed < count:
                size = min(CHUNK_RECORDS, count - self._passed)
                chunk = self._chunk(rows.slice(begin + self._passed, size), channels)
                self.rows += size
                self._passed += size
                yield chunk
        except Exception as error:
            self._lost(f"{count - self._passed} records cannot be read", error)

    def _groups(
        self, file: Any, channels: _Channels, within: tuple[int, int] | None
    ) -> Iterator[Chunk]:
        count = file.metadata.num_rows
        count = count if self._piece.count is None else min(count, self._piece.count)
        self.expected = count
        outside = _outside(file.metadata, within)
        columns = list(self._columns(shared=channels.ambiguous))
        begin = 0
        for group in range(file.num_row_groups):
            first, begin = begin, begin + file.metadata.row_group(group).num_rows
            end = min(begin, count)
            if group in outside:
                self.rows += max(0, end - max(first, self._passed))
                self._passed = max(self._passed, end)
            if end <= self._passed:
                continue
            try:
                batches = file.iter_batches(
                    CHUNK_RECORDS, row_groups=[group], columns=columns, use_threads=False
                )
                for whole in batches:
                    at, first = first, first + whole.num_rows
                    left = min(first, end) - self._passed
                    if left > 0:
                        chunk = self._chunk(whole.slice(self._passed - at, left), channels)
                        self.rows += left
                        self._passed += left
                        yield chunk
            except Exception as error:
                self._lost(f"{end - self._passed} records cannot be read", error)
                if self._gone:
                    return
                self._passed = end


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
    for piece in file.events:
        day = _Day(file, piece, fields)
        yield from day.chunks(register, within)
        report.problems += day.problems
        if day.expected is None:
            untold = True
        else:
            told += day.expected
            lost += day.expected - day.rows
    # Without its footer a file does not say how much was in it: it is what the others lack.
    lost += max(1, file.records - told) if untold else 0
    report.records -= min(lost, file.records)
    report.damaged += lost
