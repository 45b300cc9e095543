"""Users meet the public names in `pynotify`; tracebacks, pickles and help() say so, too."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def public(*things: Any) -> None:
    """Classes and functions of the package itself, wherever they are made."""
    for thing in things:
        thing.__module__ = "pynotify"
