"""The data source ``pynlog``: the records of logs and archives as rows, for SQL and notebooks.

::

    from spark_jobs.source import register

    register(spark)
    frame = spark.read.format("pynlog").load("logs")
    frame.where("channel = 'orders' and kind = 'RECV'").selectExpr("percentile(lat_ns, 0.99)")

1. Files are read where they lie, several small ones in a partition. Only whole records become rows;
   with ``mode=FAILFAST`` anything damaged is an error.
2. Spark tells a source in Python which rows it wants, but not which columns. The option ``columns``
   does ("channel, lat_ns"): of an archive, others are not read.
3. Which files to read is told by what is asked of host, boot_id, engine, pid, backend_id and
   log_id; of these, records that are asked for by channel, kind and event_time leave the reader. Of
   an archive row groups of other times are not read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_jobs.errors import CannotRunError, NoLogsError
from spark_jobs.logs.model import Chunk, Log
from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import USEFUL, WAKE_NAMES, Kind
from spark_jobs.survey import survey

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITION_BYTES: Final = 64 << 20
MODES: Final = ("DROPMALFORMED", "FAILFAST")

_OF_LOG: Final = ("host", "boot_id", "engine", "pid", "backend_id", "log_id")
_KIND_NAMES: Final = pa.array(["", *(kind.name for kind in Kind)])
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER: Final = (1 << 63) - 1

Make = Callable[[LogReader, Chunk], Any]


def _event_time(_: LogReader, chunk: Chunk) -> Any:
    return pa.array((chunk.signed("ts") + chunk.clock_ns) // 1000, pa.timestamp("us", tz="UTC"))


def _latency(reader: LogReader, chunk: Chunk) -> Any:
    """null where the record has no ``ref_ts``, or one by another clock."""
    known = (chunk.records["ref_ts"] != 0) & reader.comparable(chunk.records)
    return pa.array(chunk.signed("ts") - chunk.signed("ref_ts"), mask=~known)


def _channel(reader: LogReader, chunk: Chunk) -> Any:
    names = pa.array([name for _, name in reader.channels], pa.string())
    return names.take(pa.array(chunk.channel, mask=chunk.channel < 0))


def _database(reader: LogReader, chunk: Chunk) -> Any:
    """The database of the channel; null without one."""
    numbers = pa.array([number for number, _ in reader.channels], pa.int64())
    return numbers.take(pa.array(chunk.channel, mask=chunk.channel < 0))


def _number(name: str) -> Make:
    return lambda _, chunk: pa.array(chunk.records[name].astype(np.int64))


def _of_log(name: str) -> Make:
    return lambda reader, chunk: pa.repeat(getattr(reader.log, name), len(chunk.channel))


COLUMNS: Final[Mapping[str, tuple[pa.DataType, tuple[str, ...], Make]]] = {
    "event_time": (pa.timestamp("us", tz="UTC"), ("ts",), _event_time),
    "kind": (pa.string(), ("kind",), lambda _, chunk: _KIND_NAMES.take(pa.array(chunk.kind))),
    "channel": (pa.string(), (), _channel),
    "database": (pa.int64(), (), _database),
    **{name: (pa.string(), (), _of_log(name)) for name in ("host", "boot_id", "engine")},
    **{name: (pa.int64(), (), _of_log(name)) for name in ("pid", "backend_id")},
    "log_id": (pa.string(), (), _of_log("log_id")),
    "ts": (pa.int64(), ("ts",), _number("ts")),
    "lat_ns": (pa.int64(), ("ts", "ref_ts", "peer"), _latency),
    **{
        name: (pa.int64(), (name,), _number(name))
        for name in ("commit_seq", "chan_seq", "bytes", "peer", "lag", "batch", "attempts")
    },
    "wake": (
        pa.string(),
        ("wake",),
        lambda _, chunk: pa.array(WAKE_NAMES).take(pa.array(np.minimum(chunk.wake, 7))),
    ),
    "useful": (
        pa.bool_(),
        ("flags",),
        lambda _, chunk: pa.array((chunk.records["flags"] & USEFUL) != 0),
    ),
    "crc": (pa.int64(), ("aux",), lambda _, chunk: pa.array(chunk.signed("aux") & 0xFFFFFFFF)),
}
"""Name -> type, the fields of the record that it takes, and how it is made. ``crc`` is that of
channel and payload, and of a SIGNAL how many were sent."""


def _microseconds(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


@dataclass
class Wanted:
    """Which records: all that every condition allows."""

    logs: dict[str, set[Any]] = field(default_factory=dict)
    kinds: set[int] | None = None
    channels: set[str] | None = None
    prefixes: list[str] = field(default_factory=list)
    named: bool = False
    begin: int = 0
    end: int = _NEVER
    """From and to ns of the wall clock."""

    def take(self, wish: Filter) -> bool:
        """Whether it is exactly what will be seen to."""
        name = getattr(wish, "attribute", (None,))[0]
        if isinstance(wish, EqualTo) and wish.value is not None:
            return self._one_of(name, [wish.value])
        if isinstance(wish, In):
            return self._one_of(name, [value for value in wish.value if value is not None])
        if isinstance(wish, StringStartsWith) and name == "channel":
            self.prefixes.append(wish.value)
            return True
        if isinstance(wish, IsNotNull):
            self.named = self.named or name in ("channel", "database")
            return name != "lat_ns"
        if name == "event_time" and isinstance(getattr(wish, "value", None), datetime):
            return self._time(wish)
        return False

    def _one_of(self, name: str | None, values: Iterable[Any]) -> bool:
        if name in _OF_LOG:
            chosen = set(values)
            self.logs[name] = self.logs.get(name, chosen) & chosen
        elif name == "kind":
            numbers = {int(Kind[value]) for value in values if value in Kind.__members__}
            self.kinds = numbers if self.kinds is None else self.kinds & numbers
        elif name == "channel":
            names = set(values)
            self.channels = names if self.channels is None else self.channels & names
        else:
            return False
        return True

    def _time(self, wish: Any) -> bool:
        at = _microseconds(wish.value)
        if isinstance(wish, GreaterThan | GreaterThanOrEqual):
            self.begin = max(self.begin, 1000 * (at + isinstance(wish, GreaterThan)))
        elif isinstance(wish, LessThan | LessThanOrEqual):
            self.end = min(self.end, 1000 * (at + isinstance(wish, LessThanOrEqual)))
        else:
            return False
        return True

    def has(self, log: Log) -> bool:
        """Whether records of it can be wanted."""
        return all(getattr(log, name) in values for name, values in self.logs.items())

    def fields(self) -> set[str]:
        """What has to be read to tell."""
        of_kind = () if self.kinds is None else ("kind",)
        return {*of_kind, *(() if self.within() is None else ("ts",))}

    def within(self) -> tuple[int, int] | None:
        """As `Log.within`."""
        return None if (self.begin, self.end) == (0, _NEVER) else (self.begin, self.end)

    def _channels(self, reader: LogReader) -> NDArray[np.bool_] | None:
        """Which of the log's are wanted; the last place is that of records without one."""
        if self.channels is None and not self.prefixes and not self.named:
            return None
        found = [
            (self.channels is None or name in self.channels)
            and all(map(name.startswith, self.prefixes))
            for _, name in reader.channels
        ]
        return np.array([*found, False])

    def chosen(self, reader: LogReader, chunk: Chunk) -> Chunk:
        which = np.ones(len(chunk.channel), dtype=bool)
        if self.kinds is not None:
            which &= np.isin(chunk.kind, list(self.kinds))
        channels = self._channels(reader)
        if channels is not None:
            which &= channels[chunk.channel]
        if which.all():
            return chunk
        marks = None if chunk.marks is None else chunk.marks[which]
        return Chunk(chunk.records[which], chunk.channel[which], chunk.clock_ns, marks)


@dataclass
class Files(InputPartition):
    """Logs of one file each, as JSON."""

    texts: tuple[str, ...]


class Reader(DataSourceReader):
    """Reads those of `paths`; the columns of `names`."""

    def __init__(self, paths: Sequence[str], names: Sequence[str], mode: str) -> None:
        self._paths = list(paths)
        self._names = list(names)
        self._strict = mode == "FAILFAST"
        self._wanted = Wanted()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return [wish for wish in filters if not self._wanted.take(wish)]

    def partitions(self) -> Sequence[Files]:
        found = survey(self._paths)
        if found.unreadable and (self._strict or not found.logs):
            first = found.unreadable[0]
            raise NoLogsError(f"{first.file}: {'; '.join(first.problems)}")
        parts: list[list[str]] = []
        room = 0
        for log in filter(self._wanted.has, found.logs):
            for file in log.files:
                own = replace(log, files=(file,), within=self._wanted.within())
                if room < own.size or not parts:
                    parts.append([])
                    room = PARTITION_BYTES
                parts[-1].append(own.to_json())
                room -= own.size
        return [Files(tuple(part)) for part in parts or [[]]]

    def _fields(self) -> tuple[str, ...]:
        wanted = self._wanted.fields().union(*(COLUMNS[name][1] for name in self._names))
        return tuple(sorted(wanted))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Files)
        schema = pa.schema([(name, COLUMNS[name][0]) for name in self._names])
        for text in partition.texts:
            log = Log.from_json(text)
            reader = LogReader(log, self._fields(), peers="peer" in self._names)
            for whole in reader.chunks():
                chunk = self._wanted.chosen(reader, whole)
                if len(chunk.channel):
                    columns = [COLUMNS[name][2](reader, chunk) for name in self._names]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)
            if self._strict and any(report.problems for report in reader.reports):
                report = reader.reports[0]
                raise CannotRunError(f"{report.file}: {'; '.join(report.problems)}")


class Source(DataSource):
    """Options ``path`` (that of ``load``; several as a JSON list), ``columns`` and ``mode``."""

    @classmethod
    def name(cls) -> str:
        return "pynlog"

    def _names(self) -> list[str]:
        given = self.options.get("columns", "")
        names = [name.strip() for name in given.split(",") if name.strip()] or list(COLUMNS)
        unknown = [name for name in names if name not in COLUMNS]
        if unknown:
            raise CannotRunError(f"pynlog has no column {unknown[0]}: {', '.join(COLUMNS)}")
        return names

    def schema(self) -> StructType:
        return from_arrow_schema(pa.schema([(name, COLUMNS[name][0]) for name in self._names()]))

    def reader(self, schema: StructType) -> Reader:
        own = {field.name: field.dataType for field in self.schema()}
        for wanted in schema:
            if own.get(wanted.name) != wanted.dataType:
                has = "no such column" if wanted.name not in own else str(own[wanted.name])
                raise CannotRunError(
                    f"the schema says {wanted.name} {wanted.dataType}, pynlog has {has}\n"
                    'Leave the schema out, and choose columns with option("columns", ...).'
                )
        mode = self.options.get("mode", MODES[0]).upper()
        if mode not in MODES:
            raise CannotRunError(f"mode {mode} is none of {', '.join(MODES)}")
        return Reader(self._paths(), schema.names, mode)

    def _paths(self) -> list[str]:
        for option in ("paths", "path"):
            given = self.options.get(option, "")
            if given.startswith("["):
                return [str(path) for path in json.loads(given)]
            if given:
                return [given]
        raise CannotRunError("which logs? spark.read.format('pynlog').load('DIRECTORY')")


def register(spark: SparkSession) -> None:
    """Makes the format known in a session, and lets its sources in Python see conditions."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(Source)
