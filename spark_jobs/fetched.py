"""Raw logs that are not on a local disk.

Readers open logs in Python, so raw logs are read from local paths. Those of other schemes are
copied to the driver's disk first, which the executors must share; what is meant to be shared is
an archive (job ``ingest``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from spark_jobs.archive.layout import is_archive
from spark_jobs.directory import RemoteDirectory, directory
from spark_jobs.errors import NoLogsError
from spark_jobs.places import is_local


def _read_in_place(place: str) -> bool:
    """Whether it is local, or an archive on a file system that Arrow knows."""
    if is_local(place):
        return True
    try:
        return is_archive(place)
    except (OSError, ValueError):  # a scheme of Hadoop's alone
        return False


@contextmanager
def fetched(places: Sequence[str]) -> Iterator[list[str]]:
    """These places; raw logs that are not local are replaced by local copies."""
    if all(map(_read_in_place, places)):
        yield list(places)
        return
    with TemporaryDirectory(prefix="spark-jobs-") as root:
        result = []
        for number, place in enumerate(places):
            if _read_in_place(place):
                result.append(place)
                continue
            target = Path(root) / str(number)
            target.mkdir()
            there = directory(place)
            assert isinstance(there, RemoteDirectory)
            if not there.exists():
                raise NoLogsError(f"{place}: no such file or directory")
            there.fetch(target)
            result.append(str(target))
        yield result
