"""`with` and `async with`: an object that is closed at the end of the block."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class ClosedByWith:
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


class ClosedByAsyncWith:
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
