"""Latency of two runs side by side, per channel and over all: BEFORE and AFTER, and their ratio.

Each of the two is what the job ``latency`` left in its ``--out``, or logs, or an archive. Processes
and engines differ between runs, so channels are matched by database and name. `report` has the same
by wake reason, too.

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
from spark_jobs.survey import readable, survey

KEYS = ("scope", "database", "channel")
SIDES = ("before", "after")
FIGURES = (*QUANTILES, "mean_ns", "max_ns")
ALL, CHANNEL, WAKE = "all", "channel", "wake"
"""What a row is about: everything, a channel, or what ended the sleep (as its ``channel``)."""
_FLOATS = ("mean_ns", "per_s")
TABLE = pa.schema(
    [
        *((name, pa.int64() if name == "database" else pa.string()) for name in KEYS),
        *(
            (f"{name}_{side}", pa.float64() if name in _FLOATS else pa.int64())
            for side in SIDES
            for name in ("n", "per_s", *FIGURES)
        ),
    ]
)
"""The schema of ``compare/``."""

_ABOVE = 10
"""So many values above a quantile make it known well enough."""


Side = Survey | Directory
"""BEFORE or AFTER: logs, or a directory with the results of ``latency``."""


@dataclass(frozen=True)
class Pair:
    """Two runs."""

    before: Side
    after: Side


def prepare(paths: Sequence[str]) -> Pair:
    """Raises CannotRunError when these are not two, and NoLogsError as `side` does."""
    if len(paths) != len(SIDES):
        raise CannotRunError(f"compare takes two arguments, BEFORE and AFTER; got {len(paths)}")
    return Pair(*map(side, paths))


def side(path: str) -> Side:
    """What is there. Raises NoLogsError as `survey` does, and if none of its logs can be read."""
    results = Path(path)
    if (results / "latency_summary").is_dir():
        return results
    return readable(survey([path]))


def _about(rows: pa.Table, scope: str) -> pa.Table:
    """The rows of that scope, with its `KEYS`."""
    of_any = pc.equal(rows["wake"], "all")
    rows = rows.filter(pc.invert(of_any) if scope == WAKE else of_any)
    columns = {"scope": pa.repeat(pa.scalar(scope), rows.num_rows)}
    if scope != CHANNEL:
        columns["database"] = pa.repeat(pa.scalar(-1, pa.int64()), rows.num_rows)
        nothing = pa.repeat(pa.scalar(""), rows.num_rows)
        columns["channel"] = rows["wake"] if scope == WAKE else nothing
    kept = rows.drop_columns([name for name in (*columns, "wake") if name in rows.column_names])
    for name, column in columns.items():
        kept = kept.append_column(name, column)
    return kept


def _summary(rows: pa.Table, counts: pa.Table, scopes: Sequence[str]) -> pa.Table:
    """A row per `KEYS`; ``per_s`` is the sum of its listeners' rates, each over its own time."""
    sums = pc.multiply(rows["mean_ns"], rows["n"].cast(pa.float64()))
    names = [*KEYS[1:], "wake", "n"]
    figures = rows.select([*names, "min_ns", "max_ns"]).append_column("sum_ns", sums)
    figures = figures.append_column("per_s", rows["rate_per_s"])
    both = (figures, counts.select([*names, "bucket"]))
    order = [*KEYS, "n", "min_ns", "max_ns", "sum_ns", "per_s", "bucket"]
    parts = []
    for scope in scopes:
        found = (_about(table, scope) for table in both)
        parts += [table.select([n for n in order if n in table.column_names]) for table in found]
    how = {"sum_ns": "sum", "per_s": "sum", "min_ns": "min", "max_ns": "max"}
    together = pa.concat_tables(parts, promote_options="default")
    found_all = summarised(packed(together), KEYS, how)
    mean = pc.divide(found_all["sum_ns"], found_all["n"].cast(pa.float64()))
    return found_all.append_column("mean_ns", mean)


def _find(engine: Engine, given: Side, out: Directory) -> tuple[Directory, list[FileReport]]:
    """Where the results of ``latency`` are; of logs, in `out`."""
    if isinstance(given, Survey):
        return out, latency.run(engine, given, out, topics=False).reports
    return given, []


def stored(
    before: Directory, after: Directory, scopes: Sequence[str] = (CHANNEL, ALL)
) -> list[dict[str, Any]]:
    """Rows of `TABLE`, in order of their keys, from two directories with results of ``latency``."""
    sides = []
    for place in (before, after):
        rows, counts = (read_table(place / name) for name in ("latency_summary", "latency_hist"))
        found = _summary(rows, counts, scopes).to_pylist()
        sides.append({tuple(row[key] for key in KEYS): row for row in found})
    result = []
    for key in sorted(set().union(*sides)):
        row = dict(zip(KEYS, key, strict=True))
        for name, known in zip(SIDES, sides, strict=True):
            own = known.get(key, {})
            row |= {f"{figure}_{name}": own.get(figure) for figure in ("n", "per_s", *FIGURES)}
        result.append(row)
    return result


def before_of(engine: Engine, given: Side, out: Directory) -> tuple[Directory, list[FileReport]]:
    """Where BEFORE's results of ``latency`` are, and of its files if they were read just now."""
    return _find(engine, given, out / SIDES[0])


def _known(found: Mapping[str, Any], quantile: str) -> bool:
    counts = [found[f"n_{side}"] or 0 for side in SIDES]
    return min(counts) * (SCALE - QUANTILES[quantile]) >= _ABOVE * SCALE


def _ratio(before: float | None, after: float | None) -> float | None:
    # what took no time at all is taken for a nanosecond
    return None if before is None or after is None else max(after, 1) / max(before, 1)


def compared(found: Mapping[str, Any], threshold: float | None) -> dict[str, Any]:
    """A row of `run` from one of `stored`."""
    whole = found["scope"] == ALL
    row: dict[str, Any] = {
        "database": None if whole else found["database"],
        "channel": None if whole else found["channel"],
        "n_before": found["n_before"] or 0,
        "n_after": found["n_after"] or 0,
        "per_s_before": found["per_s_before"],
        "per_s_after": found["per_s_after"],
        "per_s_ratio": None,
    }
    if found["per_s_before"] and found["per_s_after"] is not None:
        row["per_s_ratio"] = found["per_s_after"] / found["per_s_before"]
    regressions = []
    for name in FIGURES:
        before, after = (found[f"{name}_{side}"] for side in SIDES)
        short, ratio = name.removesuffix("_ns"), _ratio(before, after)
        row |= {f"{short}_before_ns": before, f"{short}_after_ns": after, f"{short}_ratio": ratio}
        if name not in QUANTILES or threshold is None or ratio is None:
            continue
        if ratio > threshold and _known(found, name):
            regressions.append(short)
    return row | {"regressions": regressions}


def checked(threshold: float | None) -> float | None:
    """Raises CannotRunError for what is no ratio."""
    if threshold is not None and not threshold > 0:
        raise CannotRunError(f"a threshold of {threshold} is no ratio")
    return threshold


def run(engine: Engine, pair: Pair, out: Directory, *, threshold: float | None = None) -> JobResult:
    """Rows: database, channel (both null for the row over all), n_before, n_after, per_s_before,
    per_s_after, per_s_ratio; of each quantile, the mean and the maximum NAME_before_ns,
    NAME_after_ns, NAME_ratio; regressions, a list of quantiles. `compare/` in `out` has the same
    without ratios.
    """
    checked(threshold)
    places, reports = [], []
    for name, given in zip(SIDES, (pair.before, pair.after), strict=True):
        place, read = _find(engine, given, out / name)
        places.append(place)
        reports += read
    found = stored(places[0], places[1])
    write_rows(out / "compare", found, TABLE)
    rows = [compared(row, threshold) for row in found]
    totals = {"regressed": sum(map(is_worse, rows)), "threshold": threshold}
    return JobResult(rows, reports, totals=totals, shown=_shown(rows), broken=is_worse)


def is_worse(row: Mapping[str, Any]) -> bool:
    """Whether something of it is beyond the threshold."""
    return bool(row["regressions"])


def _shown(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The regressions first, then those of which p99 has grown most."""
    shown = []
    for row in sorted(rows, key=lambda row: (not is_worse(row), -(row["p99_ratio"] or 0))):
        columns = {"channel": row["channel"] or "(all)", "n before": row["n_before"]}
        for name in ("p50", "p99", "p999", "max"):
            columns |= {
                f"{name}_after_ns": row[f"{name}_after_ns"],
                "x" + name: row[f"{name}_ratio"],
            }
        shown.append(columns | {"regressions": ", ".join(row["regressions"])})
    return shown
