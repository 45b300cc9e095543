"""Where results go: a local directory, or any URI that Hadoop knows.

Spark writes tables where they are to go itself, and what the driver writes goes through Hadoop's
FileSystem, with Spark's configuration of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spark_jobs.places import is_local, local_path


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
