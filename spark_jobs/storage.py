"""Places given as a path or a URI."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit


def local_path(place: str | os.PathLike[str]) -> Path:
    """The path of a place on the local disk: a path, or a ``file:`` URI.

    Raises OSError for any other scheme.
    """
    text = os.fspath(place)
    if text.startswith("file:"):
        return Path(unquote(urlsplit(text).path))
    if "://" in text:
        raise OSError(f"{text} is not on a local disk")
    return Path(text)
