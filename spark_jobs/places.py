"""Places of logs and archives: a path, a ``file:`` URI, or a URI that Arrow or Hadoop knows."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit


def is_local(place: str | os.PathLike[str]) -> bool:
    """Whether it is a path or a ``file:`` URI."""
    text = os.fspath(place)
    return text.startswith("file:") or "://" not in text


_WITHOUT_JAVA: Final = ("s3", "gs", "gcs", "abfs", "abfss")
"""Schemes for which Arrow brings its own client."""


def needs_java(place: str | os.PathLike[str]) -> bool:
    """Whether only Hadoop can read it, or Arrow by means of Hadoop."""
    return not is_local(place) and urlsplit(os.fspath(place)).scheme not in _WITHOUT_JAVA


def local_path(place: str | os.PathLike[str]) -> Path:
    """The path of a place on the local disk.

    Raises OSError for any other scheme than ``file``.
    """
    text = os.fspath(place)
    if not is_local(text):
        raise OSError(f"{text} is not on a local disk")
    return Path(unquote(urlsplit(text).path)) if text.startswith("file:") else Path(text)


def filesystem(location: str | os.PathLike[str]) -> tuple[Any, str]:
    """The file system of a path or URI, and the path there."""
    from pyarrow import fs as arrow_fs

    text = os.fspath(location)
    if is_local(text):
        return arrow_fs.LocalFileSystem(), str(local_path(text).absolute())
    if needs_java(text):
        system, path = arrow_fs.FileSystem.from_uri(text)
        return system, path
    parts = urlsplit(text)
    system, bucket = _of_bucket(f"{parts.scheme}://{parts.netloc}")
    return system, f"{bucket}/{unquote(parts.path).strip('/')}".rstrip("/")


@cache
def _of_bucket(uri: str) -> tuple[Any, str]:
    """Its file system, and its path there. Making a client costs more than what is asked of it."""
    from pyarrow import fs as arrow_fs

    system, path = arrow_fs.FileSystem.from_uri(uri)
    return system, path


def inside(root: str, name: str) -> str:
    """The path or URI of what is called `name` in `root`."""
    if is_local(root):
        return str(local_path(root).absolute() / name)
    return f"{root.rstrip('/')}/{name.replace('%', '%25')}"
