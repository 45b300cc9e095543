"""Closing: `with`, `async with`, and what a signal handler may wait for."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any, Self


def is_inside_a_call(of: tuple[str, ...] = ("pynotify", "psycopg")) -> bool:
    """Whether the caller was called in the middle of another call of ours, by a signal handler say,
    or of one of psycopg, whose connections have locks, too.  `of`: packages, or modules.

    That call may hold a lock, and goes on when the caller returns.  So the caller must not wait for
    another thread, which may need that lock.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - there is no other way to know
    while frame is not None and _is_of(frame, ("pynotify",)):
        frame = frame.f_back
    while frame is not None and not _is_of(frame, of):
        frame = frame.f_back
    return frame is not None


def _is_of(frame: FrameType, packages: tuple[str, ...]) -> bool:
    return f"{frame.f_globals.get('__name__')}.".startswith(tuple(f"{each}." for each in packages))


class NotCopied:
    """An object that is closed: a copy of it that is dropped would close the original."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        raise TypeError(
            f"cannot copy or pickle {_with_article(type(self).__name__)}: it is open in this "
            "process\nMake another one; an Engine can be pickled, and connects over there."
        )


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


class ClosedByWith(NotCopied):
    """`with` closes the object."""

    __slots__ = ()

    def close(self) -> None:
        """Close the object; a subclass says how."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class ClosedByAsyncWith(NotCopied):
    """`async with` closes the object."""

    __slots__ = ()

    async def close(self) -> None:
        """Close the object; a subclass says how."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
