"""Places for results and of logs: a path, a ``file:`` URI, or any URI that Hadoop knows.

Readers open logs in Python, so raw logs are read from local paths. Those of other schemes are
copied to the driver's disk first, which the executors must share; what is meant to be shared is
an archive (job ``ingest``). Spark writes tables where they are to go itself, and what the driver
writes goes through Hadoop's FileSystem, with Spark's configuration of it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlsplit


def is_local(place: str | os.PathLike[str]) -> bool:
    """Whether it is a path or a ``file:`` URI."""
    text = os.fspath(place)
    return text.startswith("file:") or "://" not in text


def local_path(place: str | os.PathLike[str]) -> Path:
    """The path of a place on the local disk.

    Raises OSError for any other scheme than ``file``.
    """
    text = os.fspath(place)
    if not is_local(text):
        raise OSError(f"{text} is not on a local disk")
    return Path(unquote(urlsplit(text).path)) if text.startswith("file:") else Path(text)


class RemoteDirectory:
    """The part of `pathlib.Path` that jobs use of their output directory, for a URI.

    Only usable while there is a Spark session: its Hadoop configuration says what the URI means.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri.rstrip("/")

    def __str__(self) -> str:
        return self._uri

    def __truediv__(self, name: str) -> RemoteDirectory:
        return RemoteDirectory(f"{self._uri}/{name}")

    def _open(self) -> tuple[Any, Any]:
        """Hadoop's file system and path."""
        from pyspark.sql import SparkSession

        session: Any = SparkSession.active()
        path = session._jvm.org.apache.hadoop.fs.Path(self._uri)
        return path.getFileSystem(session._jsc.hadoopConfiguration()), path

    def exists(self) -> bool:
        system, path = self._open()
        return bool(system.exists(path))

    def mkdir(self, *, parents: bool = True, exist_ok: bool = True) -> None:
        """As with all of Hadoop's: parents are made, and it may exist."""
        system, path = self._open()
        system.mkdirs(path)

    def iterdir(self) -> Iterator[RemoteDirectory]:
        system, path = self._open()
        return (RemoteDirectory(str(entry.getPath())) for entry in system.listStatus(path))

    def write_bytes(self, data: bytes) -> None:
        """Replaces the file."""
        system, path = self._open()
        stream = system.create(path, True)
        stream.write(bytearray(data))
        stream.close()

    def write_text(self, text: str, encoding: str = "utf-8") -> None:
        self.write_bytes(text.encode(encoding))

    def remove(self) -> None:
        """With all that is in it, if it is there."""
        system, path = self._open()
        system.delete(path, True)

    def fetch(self, target: Path) -> None:
        """Copies it into the local directory `target`."""
        system, path = self._open()
        from pyspark.sql import SparkSession

        session: Any = SparkSession.active()
        there = session._jvm.org.apache.hadoop.fs.Path(target.absolute().as_uri())
        system.copyToLocalFile(False, path, there, True)


Directory = Path | RemoteDirectory


def directory(place: str) -> Directory:
    """Where a job's results go."""
    return local_path(place) if is_local(place) else RemoteDirectory(place)


def remove_tree(place: Directory) -> None:
    """With all that is in it, if it is there."""
    if isinstance(place, RemoteDirectory):
        place.remove()
    else:
        shutil.rmtree(place, ignore_errors=True)


def _read_in_place(place: str) -> bool:
    """Whether it is local, or an archive on a file system that Arrow knows."""
    if is_local(place):
        return True
    from spark_jobs.archive import is_archive

    try:
        return is_archive(place)
    except (OSError, ValueError):  # a scheme of Hadoop's alone
        return False


@contextmanager
def fetched(places: Sequence[str]) -> Iterator[list[str]]:
    """These places; raw logs that are not local are replaced by local copies."""
    with TemporaryDirectory(prefix="spark-jobs-") as root:
        result = []
        for number, place in enumerate(places):
            if _read_in_place(place):
                result.append(place)
                continue
            target = Path(root) / str(number)
            target.mkdir()
            RemoteDirectory(place).fetch(target)
            result.append(str(target))
        yield result
