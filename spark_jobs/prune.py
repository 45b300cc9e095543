"""``prune``: removes old days from an archive, by age or by size.

1. What is removed are whole segments, and all of a day: those whose last record is of a day before
   the first one that stays (UTC).
   Today stays, however much of it there is.
2. That first day is written before anything is removed, so that ``ingest`` does not bring back what
   is still in the raw logs.
3. Of a segment its row goes first: readers go by rows. What a prune that was killed has left of a
   segment, the next one removes, as what is of before the first day and has no row.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from spark_jobs.archive import layout
from spark_jobs.errors import CannotRunError
from spark_jobs.output import CLEAN, FAILED, Parser, described
from spark_jobs.places import filesystem

_AGES: Final = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_SIZES: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


@dataclass(frozen=True)
class _Segment:
    """`day` is the last one that it has records of; of one without, that of its archiving."""

    name: str
    day: str
    size: int
    events: tuple[str, ...]


def _mtimes(system: Any, folder: str) -> dict[str, str]:
    """The day on which each segment's row was written."""
    from pyarrow import fs as arrow_fs

    entries = system.get_file_info(arrow_fs.FileSelector(folder, allow_not_found=True))
    return {
        entry.base_name.removesuffix(".parquet"): entry.mtime.astimezone(UTC).date().isoformat()
        for entry in entries
    }


def _segments(place: str) -> list[_Segment]:
    """All that are in the archive."""
    system, root = filesystem(place)
    rows, unreadable = layout.segment_rows(place)
    if unreadable:
        problem = unreadable[0]
        raise CannotRunError(f"{problem.file}: {problem.problems[0]}\nNothing was removed.")
    written = _mtimes(system, f"{root}/{layout.SEGMENTS}")
    found = []
    for row in rows:
        days = [layout.day_of(events) for events in row["events"]]
        day = max(days, default=written[row["segment"]])
        found.append(_Segment(row["segment"], day, row["bytes"], tuple(row["events"])))
    return sorted(found, key=lambda segment: (segment.day, segment.name))


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
        f"{root}/{layout.EVENTS}", allow_not_found=True, recursive=True
    )
    for entry in system.get_file_info(selector):
        name = entry.base_name.removesuffix(".parquet")
        if entry.is_file and layout.day_of(entry.path) < first and name not in known:
            yield str(entry.path)


def _delete(system: Any, path: str) -> None:
    if system.get_file_info(path).is_file:
        system.delete_file(path)


def _remove(system: Any, root: str, segment: _Segment) -> None:
    _delete(system, f"{root}/{layout.SEGMENTS}/{segment.name}.parquet")
    for events in segment.events:
        _delete(system, f"{root}/{events}")
    _delete(system, f"{root}/{layout.CHANNELS}/{segment.name}.parquet")
    _delete(system, f"{root}/{layout.QUARANTINE}/{segment.name}.pynlog")


def _remove_empty_days(system: Any, root: str, first: str) -> None:
    from pyarrow import fs as arrow_fs

    events = arrow_fs.FileSelector(f"{root}/{layout.EVENTS}", allow_not_found=True)
    for day in system.get_file_info(events):
        if layout.day_of(day.path + "/") >= first:
            continue
        below = system.get_file_info(arrow_fs.FileSelector(day.path, recursive=True))
        if not any(entry.is_file for entry in below):
            system.delete_dir(day.path)


def _write_first_day(system: Any, root: str, first: str) -> None:
    draft = f"{root}/{layout.STAGING}/{layout.PRUNED}"
    system.create_dir(f"{root}/{layout.STAGING}", recursive=True)
    with system.open_output_stream(draft) as sink:
        sink.write(json.dumps({"before": first}).encode())
    system.move(draft, f"{root}/{layout.PRUNED}")


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
    if not dry_run and first:
        _write_first_day(system, root, first)
        for segment in old:
            _remove(system, root, segment)
        known = {segment.name for segment in segments} - {segment.name for segment in old}
        for path in _left_behind(system, root, first, known):
            system.delete_file(path)
        _remove_empty_days(system, root, first)
    removed = sum(segment.size for segment in old)
    return {
        "job": "prune",
        "status": "clean",
        "first_day": first or None,
        "removed": len(old),
        "removed_bytes": removed,
        "left": len(segments) - len(old),
        "left_bytes": sum(segment.size for segment in segments) - removed,
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
        text = str(error) if isinstance(error, CannotRunError | OSError) else described(error)
        print(f"spark_jobs prune: {text}", file=sys.stderr)
        if options.json:
            print(json.dumps({"job": "prune", "status": "error", "error": text}))
        return FAILED
    if options.json:
        print(json.dumps(found))
    else:
        would = "would remove" if found["dry_run"] else "removed"
        print(
            f"{would} {found['removed']:,} segments, {found['removed_bytes']:,} bytes; "
            f"{found['left']:,} are left, {found['left_bytes']:,} bytes"
        )
    return CLEAN
