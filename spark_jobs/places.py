"""Places of logs and archives: a path, a ``file:`` URI, or a URI that Arrow knows."""

from __future__ import annotations

import os
from pathlib import Path
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


def filesystem(location: str | os.PathLike[str]) -> tuple[Any, str]:
    """The file system of a path or URI, and the path there."""
    from pyarrow import fs as arrow_fs

    text = os.fspath(location)
    if is_local(text):
        return arrow_fs.LocalFileSystem(), str(local_path(text).absolute())
    system, path = arrow_fs.FileSystem.from_uri(text)
    return system, path


def inside(root: str, name: str) -> str:
    """The path or URI of what is called `name` in `root`."""
    if is_local(root):
        return str(local_path(root).absolute() / name)
    return f"{root.rstrip('/')}/{name.replace('%', '%25')}"
