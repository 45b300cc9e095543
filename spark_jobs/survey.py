"""Where every job begins: what logs and archives there are at the places given."""

from __future__ import annotations

import os
from collections.abc import Iterable

from spark_jobs.archive.layout import is_archive, read_segments
from spark_jobs.errors import NoLogsError
from spark_jobs.logs.find import find, group, read_segment, recycled
from spark_jobs.logs.model import Segment, Survey
from spark_jobs.logs.quality import FileReport


def survey(paths: Iterable[str | os.PathLike[str]]) -> Survey:
    """Reads the headers of all log files at `paths`; a directory that ``ingest`` wrote counts too.

    A segment that is found more than once is read once. Raises NoLogsError as `find` does.
    """
    given = list(paths)
    archives = [path for path in given if is_archive(path)]
    others = [path for path in given if path not in archives]
    found: list[Segment | FileReport] = []
    files = [str(file) for file in find(others)] if others or not archives else []
    for file in files:
        segment = read_segment(file)
        # One that makes room for others just now was one of its log's files, and is told as such.
        if isinstance(segment, Segment) or os.path.lexists(file):
            found.append(segment)
    gone = recycled(files)  # now: a file is in the ledger before it is gone
    for archive in archives:
        found += read_segments(archive)
    return group(found, gone)


def readable(found: Survey) -> Survey:
    """The same. Raises NoLogsError if there are files, and none is a log that can be read."""
    if not found.unreadable or found.logs:
        return found
    shown = [f"{report.file}: {'; '.join(report.problems)}" for report in found.unreadable[:5]]
    more = len(found.unreadable) - len(shown)
    lines = ["no log file can be read", *shown, *([f"and {more} more"] * (more > 0))]
    raise NoLogsError("\n".join(lines))
