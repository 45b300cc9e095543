"""The input: the source text of the running interpreter's standard library.

One channel per top-level module or package, so that the traffic is as uneven as real traffic is.
"""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

_NOT_LIBRARY = ("site-packages", "dist-packages")
MAX_PAYLOAD = 7999


class NoSourceError(Exception):
    """The interpreter's standard library is not there as text."""


@dataclass(frozen=True)
class SourceFile:
    """One file; `channel` is a number, see `Library.channels`."""

    path: Path
    channel: int


@dataclass(frozen=True)
class Library:
    """All source files, and the names of the channels, the largest module first."""

    files: tuple[SourceFile, ...]
    channels: tuple[str, ...]


def find_library(root: Path | None = None) -> Library:
    """The standard library below `root` (by default the interpreter's).  Reads no file.

    Raises NoSourceError when there are no source files.
    """
    root = Path(sysconfig.get_path("stdlib")) if root is None else root
    sizes: dict[str, int] = {}
    found: list[tuple[Path, str]] = []
    for path in sorted(root.rglob("*.py")):
        top = path.relative_to(root).parts[0]
        if top in _NOT_LIBRARY or not path.is_file():
            continue
        module = top.removesuffix(".py")
        found.append((path, module))
        sizes[module] = sizes.get(module, 0) + path.stat().st_size
    if not any(sizes.values()):
        raise NoSourceError(
            f"no source files of the standard library below {root}; "
            "use an interpreter that was installed with them"
        )
    channels = tuple(sorted(sizes, key=lambda module: (-sizes[module], module)))
    numbers = {module: number for number, module in enumerate(channels)}
    return Library(tuple(SourceFile(path, numbers[module]) for path, module in found), channels)


def read_lines(path: Path) -> list[bytes]:
    """The lines without their ends, as bytes: some files are not UTF-8, on purpose."""
    lines = path.read_bytes().splitlines()
    if all(len(line) <= MAX_PAYLOAD for line in lines):
        return lines
    return [
        line[start : start + MAX_PAYLOAD]
        for line in lines
        for start in range(0, len(line) or 1, MAX_PAYLOAD)
    ]
