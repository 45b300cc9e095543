"""The files of shared arrays beside a segment (pubsub/_shared.py), by their names.

`pynotify-array.<uid>.<segment>.<instance>` carries the locks, and with `.<arena>.<number>` behind
it a file is a block.  `instance`, 16 hexadecimal digits, is when the segment was created: files of
an old segment of the same name are never those of a new one.  `arena` has 8.
"""

from __future__ import annotations

import contextlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final

DIRECTORY: Final = "/dev/shm"


class ArrayFiles:
    """The files of one segment's arrays."""

    def __init__(self, segment: str, instance: int) -> None:
        self._name = f"{_prefix(segment)}{instance:016x}"
        #: Of the file that carries the locks.
        self.lock_path = os.path.join(DIRECTORY, self._name)

    def block_path(self, arena: int, number: int) -> str:
        """Where a block is."""
        return f"{self.lock_path}.{arena:08x}.{number}"

    def blocks(self) -> dict[int, list[int]]:
        """The numbers of the blocks that there are, by their arena."""
        found: dict[int, list[int]] = {}
        import re  # noqa: PLC0415, as below

        block = re.compile(re.escape(self._name) + r"\.([0-9a-f]{8})\.([0-9]+)")
        for entry in _entries():
            match = block.fullmatch(entry)
            if match is not None:
                found.setdefault(int(match[1], 16), []).append(int(match[2]))
        return found


def remove_array_files(segment: str) -> None:
    """Remove those of every segment that had this name.  What is mapped stays mapped."""
    for entry in array_files(segment):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(DIRECTORY, entry))


def array_files(segment: str) -> list[str]:
    """The names of all files of segments of this name."""
    import re  # noqa: PLC0415, not for a command that removes nothing

    mine = re.compile(re.escape(_prefix(segment)) + r"[0-9a-f]{16}(\.[0-9a-f]{8}\.[0-9]+)?")
    return [entry for entry in _entries() if mine.fullmatch(entry)]


def _prefix(segment: str) -> str:
    return f"pynotify-array.{os.geteuid()}.{segment}."


def _entries() -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError):
        yield from os.listdir(DIRECTORY)
