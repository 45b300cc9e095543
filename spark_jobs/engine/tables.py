"""Tables of results: in order, written as Parquet and read again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from numpy.typing import NDArray

from spark_jobs.directory import Directory, RemoteDirectory, remove_tree


def ordered(table: pa.Table, *keys: str) -> pa.Table:
    """By these columns, null last; texts by code point."""
    return table.take(pc.sort_indices(table, [(key, "ascending") for key in keys]))


def key_begins(table: pa.Table, keys: Sequence[str]) -> NDArray[np.bool_]:
    """Which rows have another key than the one before; rows of a key are next to each other."""
    begins = np.zeros(table.num_rows, dtype=bool)
    begins[:1] = True
    for key in keys:
        encoded = table[key].combine_chunks().dictionary_encode()
        code = encoded.indices.fill_null(-1).to_numpy()
        begins[1:] |= code[1:] != code[:-1]
    return begins


def groups(table: pa.Table, *keys: str) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    """Each key, and its rows."""
    rows = ordered(table, *keys).combine_chunks()
    begins = np.flatnonzero(key_begins(rows, keys))
    ends = np.append(begins[1:], rows.num_rows)[: len(begins)]
    names = rows.select(list(keys)).take(pa.array(begins)).to_pylist()
    for name, begin, end in zip(names, begins, ends, strict=True):
        yield name, rows.slice(begin, end - begin)


def write_table(directory: Directory, table: pa.Table) -> None:
    """Replaces `directory` by that table."""
    remove_tree(directory)
    directory.mkdir(parents=True)
    buffer = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, buffer, compression="zstd")
    (directory / "part-0.parquet").write_bytes(buffer.getvalue().to_pybytes())


def write_rows(directory: Directory, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> None:
    """Replaces `directory` by a table of these rows."""
    write_table(directory, pa.Table.from_pylist(list(rows), schema=schema))


def read_table(directory: Directory) -> pa.Table:
    """All files of a table."""
    if isinstance(directory, RemoteDirectory):
        with TemporaryDirectory(prefix="spark-jobs-") as root:
            directory.fetch(Path(root))
            return pyarrow.parquet.read_table(root)
    return pyarrow.parquet.read_table(directory)
