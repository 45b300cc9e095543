"""Small tables that the driver has anyway, as Parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from spark_jobs.spark.directory import Directory, remove_tree


def write_rows(directory: Directory, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> None:
    """Replaces `directory` by a table of these rows; Spark would take a stage for it."""
    remove_tree(directory)
    directory.mkdir(parents=True)
    table = pa.Table.from_pylist(list(rows), schema=schema)
    buffer = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, buffer, compression="zstd")
    (directory / "part-0.parquet").write_bytes(buffer.getvalue().to_pybytes())
