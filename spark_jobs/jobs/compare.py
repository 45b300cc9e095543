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

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from spark_jobs.errors import CannotRunError
from spark_jobs.figures.histogram import QUANTILES, SCALE
from spark_jobs.figures.quantiles import summarised
from spark_jobs.jobs import latency
from spark_jobs.logs.model import Survey
from spark_jobs.logs.quality import FileReport
from spark_jobs.result import JobResult
from spark_jobs.spark.directory import Directory
from spark_jobs.survey import survey

TITLE = "ratios between two runs, per channel and quantile; exit status 2 beyond --threshold"
KEYS = ("scope", "database", "channel")
SIDES = ("before", "after")
FIGURES = (*QUANTILES, "mean_ns", "max_ns")

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


def _scoped(frame: DataFrame) -> DataFrame:
    """Each row for its channel, and again for the whole."""
    rows = frame.where(sf.col("wake") == "all")
    scopes = sf.expr(
        "explode(array(struct('channel' AS scope, database, channel), "
        "struct('all' AS scope, -1L AS database, '' AS channel))) AS place"
    )
    others = [name for name in rows.columns if name not in KEYS]
    return rows.select(*others, scopes).select(*others, "place.*")


def _summary(rows: DataFrame, counts: DataFrame) -> DataFrame:
    sums = rows.withColumn("sum_ns", sf.col("mean_ns") * sf.col("n"))
    figures = sums.select(*KEYS[1:], "wake", "n", "sum_ns", "min_ns", "max_ns")
    parts = figures.unionByName(
        counts.select(*KEYS[1:], "wake", "bucket", "n"), allowMissingColumns=True
    )
    how = {"sum_ns": "sum", "min_ns": "min", "max_ns": "max"}
    found = summarised(_scoped(parts), KEYS, how)
    return found.withColumn("mean_ns", sf.col("sum_ns") / sf.col("n"))


def _find(
    session: SparkSession, side: Survey | Directory, out: Directory
) -> tuple[DataFrame, list[FileReport]]:
    """One row per (database, channel) and one over all of them."""
    reports: list[FileReport] = []
    if isinstance(side, Survey):
        reports = latency.run(session, side, out).reports
        side = out
    rows = session.read.parquet(str(side / "latency_summary"))
    counts = session.read.parquet(str(side / "latency_hist"))
    return _summary(rows, counts), reports


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


def run(
    session: SparkSession, pair: Pair, out: Directory, *, threshold: float | None = None
) -> JobResult:
    """Rows: database, channel (both null for the row over all), n_before, n_after; of each
    quantile, the mean and the maximum NAME_before_ns, NAME_after_ns, NAME_ratio; regressions, a
    list of quantiles. `compare/` in `out` has the same without ratios.
    """
    if threshold is not None and not threshold > 0:
        raise CannotRunError(f"a threshold of {threshold} is no ratio")
    sides, reports = [], []
    for name, side in zip(SIDES, (pair.before, pair.after), strict=True):
        frame, found = _find(session, side, out / name)
        reports += found
        sides.append(
            frame.select(*KEYS, *(sf.col(f).alias(f"{f}_{name}") for f in ("n", *FIGURES)))
        )
    path = str(out / "compare")
    sides[0].join(sides[1], list(KEYS), "full").write.mode("overwrite").parquet(path)
    stored = session.read.parquet(path).orderBy(*KEYS).collect()
    rows = [_row(found.asDict(), threshold) for found in stored]
    worse = sum(bool(row["regressions"]) for row in rows)
    return JobResult(rows, reports, worse > 0, totals={"regressed": worse, "threshold": threshold})
