"""Small tables that the driver has anyway, as Parquet."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet


def write_rows(directory: Path, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> None:
    """Replaces `directory` by a table of these rows; Spark would take a stage for it."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    table = pa.Table.from_pylist(list(rows), schema=schema)
    pyarrow.parquet.write_table(table, directory / "part-0.parquet", compression="zstd")
