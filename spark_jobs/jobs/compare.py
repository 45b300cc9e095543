"""Latency of two runs side by side, per channel and over all: BEFORE and AFTER, and their ratio.

Each of the two is what the job ``latency`` left in its ``--out``, or logs, or an archive. Processes
and engines differ between runs, so channels are matched by database and name.

With a threshold a quantile that has grown by a larger factor is a regression, and the exit status
is 2. Only quantiles that both runs know well are judged: at least ten values must lie above. A
channel that only one run has is listed and not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.directory import Directory
from spark_jobs.engine.base import Engine
from spark_jobs.engine.tables import read_table, write_rows
from spark_jobs.errors import CannotRunError
from spark_jobs.figures.histogram import QUANTILES, SCALE
from spark_jobs.figures.quantiles import packed, summarised
from spark_jobs.jobs import latency
from spark_jobs.logs.model import Survey
from spark_jobs.logs.quality import FileReport
from spark_jobs.result import JobResult
from spark_jobs.survey import survey

KEYS = ("scope", "database", "channel")
SIDES = ("before", "after")
FIGURES = (*QUANTILES, "mean_ns", "max_ns")
TABLE = pa.schema(
    [
        *((name, pa.int64() if name == "database" else pa.string()) for name in KEYS),
        *(
            (f"{name}_{side}", pa.float64() if name == "mean_ns" else pa.int64())
            for side in SIDES
            for name in ("n", *FIGURES)
        ),
    ]
)
"""Of ``compare/``."""

_ABOVE = 10
"""So many values above a quantile make it known well enough."""


@dataclass(frozen=True)
class Pair:
    """BEFORE and AFTER: a survey, or a directory with the results of ``latency``."""

    before: Survey | Path
    after: Survey | Path


def prepare(paths: Sequence[str]) -> Pair:
    """Raises CannotRunError when these are not two, and NoLogsError as `survey` does."""
    if len(paths) != len(SIDES):
        raise CannotRunError(f"compare takes two arguments, BEFORE and AFTER; got {len(paths)}")
    return Pair(*map(_side, paths))


def _side(path: str) -> Survey | Path:
    results = Path(path)
    if (results / "latency_summary").is_dir():
        return results
    return survey([path])


def _scoped(rows: pa.Table) -> pa.Table:
    """Each row for its channel, and again for the whole."""
    over_all = {"scope": "all", "database": -1, "channel": ""}
    tables = []
    for scope in ({"scope": "channel"}, over_all):
        table = rows
        for name, value in scope.items():
            column = pa.repeat(pa.scalar(value, TABLE.field(name).type), rows.num_rows)
            if name in table.column_names:
                table = table.drop_columns(name)
            table = table.append_column(name, column)
        tables.append(table)
    return pa.concat_tables([tables[0], tables[1].select(tables[0].column_names)])


def _summary(rows: pa.Table, counts: pa.Table) -> pa.Table:
    names = [*KEYS[1:], "n", "min_ns", "max_ns"]
    figures, buckets = (each.filter(pc.equal(each["wake"], "all")) for each in (rows, counts))
    sums = pc.multiply(figures["mean_ns"], figures["n"].cast(pa.float64()))
    parts = pa.concat_tables(
        [
            figures.select(names).append_column("sum_ns", sums),
            buckets.select([*KEYS[1:], "bucket", "n"]),
        ],
        promote_options="default",
    )
    how = {"sum_ns": "sum", "min_ns": "min", "max_ns": "max"}
    found = summarised(_scoped(packed(parts)), KEYS, how)
    mean = pc.divide(found["sum_ns"], found["n"].cast(pa.float64()))
    return found.append_column("mean_ns", mean)


def _find(
    engine: Engine, side: Survey | Path, out: Directory
) -> tuple[dict[tuple[Any, ...], dict[str, Any]], list[FileReport]]:
    """One row per (database, channel) and one over all of them, by `KEYS`."""
    reports: list[FileReport] = []
    place: Directory = out
    if isinstance(side, Survey):
        reports = latency.run(engine, side, out).reports
    else:
        place = side
    found = _summary(read_table(place / "latency_summary"), read_table(place / "latency_hist"))
    return {tuple(row[key] for key in KEYS): row for row in found.to_pylist()}, reports


def _known(found: Mapping[str, Any], quantile: str) -> bool:
    counts = [found[f"n_{side}"] or 0 for side in SIDES]
    return min(counts) * (SCALE - QUANTILES[quantile]) >= _ABOVE * SCALE


def _row(found: Mapping[str, Any], threshold: float | None) -> dict[str, Any]:
    whole = found["scope"] == "all"
    row: dict[str, Any] = {
        "database": None if whole else found["database"],
        "channel": None if whole else found["channel"],
        "n_before": found["n_before"] or 0,
        "n_after": found["n_after"] or 0,
    }
    regressions = []
    for name in FIGURES:
        before, after = (found[f"{name}_{side}"] for side in SIDES)
        short = name.removesuffix("_ns")
        # what took no time at all is taken for a nanosecond
        ratio = None if before is None or after is None else max(after, 1) / max(before, 1)
        row |= {f"{short}_before_ns": before, f"{short}_after_ns": after, f"{short}_ratio": ratio}
        if name not in QUANTILES or threshold is None or ratio is None:
            continue
        if ratio > threshold and _known(found, name):
            regressions.append(short)
    return row | {"regressions": regressions}


def run(engine: Engine, pair: Pair, out: Directory, *, threshold: float | None = None) -> JobResult:
    """Rows: database, channel (both null for the row over all), n_before, n_after; of each
    quantile, the mean and the maximum NAME_before_ns, NAME_after_ns, NAME_ratio; regressions, a
    list of quantiles. `compare/` in `out` has the same without ratios.
    """
    if threshold is not None and not threshold > 0:
        raise CannotRunError(f"a threshold of {threshold} is no ratio")
    sides, reports = [], []
    for name, side in zip(SIDES, (pair.before, pair.after), strict=True):
        found, read = _find(engine, side, out / name)
        reports += read
        sides.append(found)
    stored = []
    for key in sorted(set().union(*sides)):
        row = dict(zip(KEYS, key, strict=True))
        for name, found in zip(SIDES, sides, strict=True):
            own = found.get(key, {})
            row |= {f"{figure}_{name}": own.get(figure) for figure in ("n", *FIGURES)}
        stored.append(row)
    write_rows(out / "compare", stored, TABLE)
    rows = [_row(found, threshold) for found in stored]
    totals = {"regressed": sum(map(_is_worse, rows)), "threshold": threshold}
    return JobResult(rows, reports, totals=totals, shown=_shown(rows), broken=_is_worse)


def _is_worse(row: Mapping[str, Any]) -> bool:
    return bool(row["regressions"])


def _shown(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The regressions first, then those of which p99 has grown most."""
    shown = []
    for row in sorted(rows, key=lambda row: (not _is_worse(row), -(row["p99_ratio"] or 0))):
        columns = {"channel": row["channel"] or "(all)", "n before": row["n_before"]}
        for name in ("p50", "p99", "p999", "max"):
            columns |= {
                f"{name}_after_ns": row[f"{name}_after_ns"],
                "x" + name: row[f"{name}_ratio"],
            }
        shown.append(columns | {"regressions": ", ".join(row["regressions"])})
    return shown
