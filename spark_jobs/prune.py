"""``prune``: removes old days from an archive, by age or by size.

1. What is removed are whole segments, and all of a day: those whose last record is of a day before
   the first one that stays (UTC).
   Today stays, however much of it there is.
2. That first day is written before anything is removed, so that ``ingest`` does not bring back what
   is still in the raw logs.
3. Of a segment its row goes first: readers go by rows. What a prune that was killed has left of a
   segment, the next one removes, as what is of before the first day and has no row.
4. A pack (`spark_jobs.archive.compaction`) goes whole: its segments have the same last day. Rows
   that do not stand any more go before the one that does, or a kill would bring them back.
5. It also removes what killed processes have left in the archive (`spark_jobs.archive.changes`).
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from spark_jobs.archive import changes, layout
from spark_jobs.archive.compaction import days_written, last_day
from spark_jobs.errors import CannotRunError
from spark_jobs.logs import stored
from spark_jobs.output import CLEAN, Parser, described, report_failure
from spark_jobs.places import filesystem

_AGES: Final = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_SIZES: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


@dataclass(frozen=True)
class _Segment:
    """`day` is the last one that it has records of; of one without, that of its archiving."""

    name: str
    day: str
    size: int
    row: stored.Row
    stands: bool


def _segments(place: str) -> list[_Segment]:
    """All that are in the archive; rows that do not stand come first."""
    rows, unreadable = stored.rows(place)
    if unreadable:
        problem = unreadable[0]
        raise CannotRunError(f"{problem.file}: {problem.problems[0]}\nNothing was removed.")
    written = days_written(place)
    best = stored.standing(rows)
    found = []
    for row in rows:
        stands = row is best[row["segment"]]
        day = last_day(row, written)
        found.append(_Segment(row["segment"], day, row["bytes"] * stands, row, stands))
    return sorted(found, key=lambda segment: (segment.stands, segment.day, segment.name))


def _first_to_stay(segments: Sequence[_Segment], older: str, most: int | None) -> str:
    """The day that is the first to stay; by size it is today at the latest."""
    first = older
    if most is not None:
        sizes: dict[str, int] = {}
        for segment in segments:
            sizes[segment.day] = sizes.get(segment.day, 0) + segment.size
        left = sum(size for day, size in sizes.items() if day >= first)
        for day in sorted(day for day in sizes if day >= first):
            if left <= most or day >= _today():
                break
            left -= sizes[day]
            first = _after(day)
    return first


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _after(day: str) -> str:
    return (datetime.fromisoformat(day) + timedelta(days=1)).date().isoformat()


def _left_behind(system: Any, root: str, first: str, known: set[str]) -> Iterator[str]:
    """Files of ``events/`` of before the first day, of segments without a row."""
    from pyarrow import fs as arrow_fs

    selector = arrow_fs.FileSelector(
        f"{root}/{stored.EVENTS}", allow_not_found=True, recursive=True
    )
    for entry in system.get_file_info(selector):
        if entry.is_file and stored.day_of(entry.path) < first and entry.path not in known:
            yield str(entry.path)


def _remove(system: Any, root: str, segments: Sequence[_Segment]) -> None:
    """Their files; each row before what it names."""
    by_file: dict[str, list[_Segment]] = {}
    for segment in segments:
        by_file.setdefault(segment.row[stored.ROW_FILE], []).append(segment)
    for own in by_file.values():
        for path in changes.named(root, [segment.row for segment in own]):
            _delete(system, path)
        for segment in (each for each in own if each.stands):
            _delete(system, f"{root}/{stored.QUARANTINE}/{segment.name}.pynlog")


_delete = changes.delete


def _remove_empty_days(system: Any, root: str, first: str) -> None:
    from pyarrow import fs as arrow_fs

    events = arrow_fs.FileSelector(f"{root}/{stored.EVENTS}", allow_not_found=True)
    for day in system.get_file_info(events):
        if stored.day_of(day.path + "/") >= first:
            continue
        below = system.get_file_info(arrow_fs.FileSelector(day.path, recursive=True))
        if not any(entry.is_file for entry in below):
            system.delete_dir(day.path)


def _write_first_day(system: Any, root: str, first: str) -> None:
    system.create_dir(f"{root}/{stored.STAGING}", recursive=True)
    draft = changes.draft(root)
    with system.open_output_stream(draft) as sink:
        sink.write(json.dumps({"before": first}).encode())
    changes.put(system, draft, f"{root}/{layout.PRUNED}")


def prune(
    place: str, *, older: str | None = None, most: int | None = None, dry_run: bool = False
) -> dict[str, Any]:
    """Removes the days before `older` (YYYY-MM-DD), and the oldest until the rest has `most` bytes.

    With `dry_run` it only says what it would remove. Raises CannotRunError if that is no archive,
    or what it holds cannot be told.
    """
    if not layout.is_archive(place):
        raise CannotRunError(f"{place} is no archive: ingest makes one")
    system, root = filesystem(place)
    segments = _segments(place)
    first = max(_first_to_stay(segments, older or "", most), layout.pruned_before(place))
    old = [segment for segment in segments if segment.day < first]
    left = [segment for segment in segments if segment.day >= first]
    swept = 0
    if not dry_run:
        swept = changes.sweep(place)
    if not dry_run and first:
        _write_first_day(system, root, first)
        _remove(system, root, old)
        known = set(changes.named(root, [segment.row for segment in left]))
        for path in _left_behind(system, root, first, known):
            changes.delete(system, path)
        _remove_empty_days(system, root, first)
    removed = sum(segment.size for segment in old)
    return {
        "job": "prune",
        "status": "clean",
        "first_day": first or None,
        "removed": sum(segment.stands for segment in old),
        "removed_bytes": removed,
        "left": sum(segment.stands for segment in left),
        "left_bytes": sum(segment.size for segment in left),
        "swept": swept,
        "dry_run": dry_run,
    }


def _day(text: str) -> str:
    """YYYY-MM-DD, or the day that was that long ago."""
    ago = re.fullmatch(r"(\d+\.?\d*)([hdw])", text)
    if ago is not None:
        return (datetime.now(UTC) - float(ago[1]) * _AGES[ago[2]]).date().isoformat()
    try:
        day = datetime.strptime(text, "%Y-%m-%d").date().isoformat()
    except ValueError:
        what = f"{text} is no age such as 30d (h, d, w), and no day such as 2026-01-31"
        raise argparse.ArgumentTypeError(what) from None
    if day > _today():
        raise argparse.ArgumentTypeError(f"{text} is yet to come")
    return day


def _bytes(text: str) -> int:
    size = re.fullmatch(r"(\d+\.?\d*)([kmgt]?)b?", text.lower())
    if size is None:
        raise argparse.ArgumentTypeError(f"{text} is no size such as 100GB (k, M, G, T)")
    return round(float(size[1]) * _SIZES[size[2]])


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m spark_jobs prune",
        description="Removes old days from an archive. Days are UTC, and go whole.",
    )
    parser.add_argument("archive", metavar="ARCHIVE", help="what ingest made")
    parser.add_argument(
        "--older", type=_day, metavar="AGE", help="30d (h, d, w), or before 2026-01-31"
    )
    parser.add_argument(
        "--most", type=_bytes, metavar="SIZE", help="the oldest days, until the rest is 100GB"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be removed")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Runs the command line and returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.older is None and options.most is None:
        parser.error("say what is old: --older 30d, or --most 100GB")
    try:
        found = prune(
            options.archive, older=options.older, most=options.most, dry_run=options.dry_run
        )
    except Exception as error:
        return report_failure("prune", described(error), as_json=options.json)
    if options.json:
        print(json.dumps(found))
    else:
        would = "would remove" if found["dry_run"] else "removed"
        print(
            f"{would} {found['removed']:,} segments, {found['removed_bytes']:,} bytes; "
            f"{found['left']:,} are left, {found['left_bytes']:,} bytes"
        )
        if found["swept"]:
            print(f"also {found['swept']:,} files that killed processes had left")
    return CLEAN
