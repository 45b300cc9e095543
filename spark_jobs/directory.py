"""Where results go: a local directory, an object store, or any URI that Hadoop knows.

What Arrow has a client for needs no Java. All else goes through Hadoop's FileSystem, with Spark's
configuration of it.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from spark_jobs.places import filesystem, is_local, local_path, needs_java


class RemoteDirectory(ABC):
    """The part of `pathlib.Path` that jobs use of their output directory, for a URI."""

    def __init__(self, uri: str) -> None:
        self._uri = uri.rstrip("/")

    def __str__(self) -> str:
        return self._uri

    def __truediv__(self, name: str) -> Self:
        return type(self)(f"{self._uri}/{name}")

    @abstractmethod
    def exists(self) -> bool: ...

    @abstractmethod
    def mkdir(self, *, parents: bool = True, exist_ok: bool = True) -> None:
        """Parents are made, and it may exist."""

    @abstractmethod
    def iterdir(self) -> Iterator[Self]: ...

    @abstractmethod
    def write_bytes(self, data: bytes) -> None:
        """Replaces the file."""

    def write_text(self, text: str, encoding: str = "utf-8") -> None:
        self.write_bytes(text.encode(encoding))

    @abstractmethod
    def remove(self) -> None:
        """With all that is in it, if it is there."""

    @abstractmethod
    def fetch(self, target: Path) -> None:
        """Copies it into the local directory `target`."""


class ObjectStoreDirectory(RemoteDirectory):
    """A bucket, by Arrow's own client. It is configured by the environment, as AWS's is."""

    def _open(self) -> tuple[Any, str]:
        return filesystem(self._uri)

    def exists(self) -> bool:
        system, path = self._open()
        return bool(system.get_file_info(path).type != _types().NotFound)

    def mkdir(self, *, parents: bool = True, exist_ok: bool = True) -> None:
        system, path = self._open()
        system.create_dir(path, recursive=True)

    def iterdir(self) -> Iterator[Self]:
        from pyarrow import fs as arrow_fs

        system, path = self._open()
        entries = system.get_file_info(arrow_fs.FileSelector(path))
        return (self / entry.base_name for entry in entries)

    def write_bytes(self, data: bytes) -> None:
        system, path = self._open()
        with system.open_output_stream(path) as sink:
            sink.write(data)

    def remove(self) -> None:
        system, path = self._open()
        kind = system.get_file_info(path).type
        if kind == _types().Directory:
            system.delete_dir(path)
        elif kind == _types().File:
            system.delete_file(path)

    def fetch(self, target: Path) -> None:
        from pyarrow import fs as arrow_fs

        system, path = self._open()
        if system.get_file_info(path).type == _types().File:
            target /= path.rpartition("/")[2]
        arrow_fs.copy_files(
            path, str(target), source_filesystem=system, destination_filesystem=_local()
        )


def _types() -> Any:
    from pyarrow import fs as arrow_fs

    return arrow_fs.FileType


def _local() -> Any:
    from pyarrow import fs as arrow_fs

    return arrow_fs.LocalFileSystem()


class HadoopDirectory(RemoteDirectory):
    """Only usable while there is a Spark session: Hadoop's configuration says what a URI means."""

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
        system, path = self._open()
        system.mkdirs(path)

    def iterdir(self) -> Iterator[Self]:
        system, path = self._open()
        return (type(self)(str(entry.getPath())) for entry in system.listStatus(path))

    def write_bytes(self, data: bytes) -> None:
        system, path = self._open()
        stream = system.create(path, True)
        stream.write(bytearray(data))
        stream.close()

    def remove(self) -> None:
        system, path = self._open()
        system.delete(path, True)

    def fetch(self, target: Path) -> None:
        system, path = self._open()
        from pyspark.sql import SparkSession

        session: Any = SparkSession.active()
        there = session._jvm.org.apache.hadoop.fs.Path(target.absolute().as_uri())
        system.copyToLocalFile(False, path, there, True)


Directory = Path | RemoteDirectory


def directory(place: str) -> Directory:
    """Where a job's results go."""
    if is_local(place):
        return local_path(place)
    return HadoopDirectory(place) if needs_java(place) else ObjectStoreDirectory(place)


def remove_tree(place: Directory) -> None:
    """With all that is in it, if it is there."""
    if isinstance(place, RemoteDirectory):
        place.remove()
    else:
        shutil.rmtree(place, ignore_errors=True)
