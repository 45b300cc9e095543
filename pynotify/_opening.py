"""What `await` and `async with` take alike."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Protocol, TypeVar


class _Closable(Protocol):
    async def close(self) -> None: ...


_C = TypeVar("_C", bound=_Closable)


class Opening(Coroutine[Any, Any, _C]):
    """A coroutine that opens what `async with` closes; `await` returns it, `async with` has it.

    A coroutine in full, so that `asyncio.run()` and `create_task()` take it as one.
    """

    __slots__ = ("_made", "_opening")

    def __init__(self, opening: Coroutine[Any, Any, _C]) -> None:
        self._opening = opening

    def send(self, value: Any) -> Any:
        """Go on with the coroutine, for the event loop."""
        return self._opening.send(value)

    def throw(self, *arguments: Any) -> Any:
        """Raise in the coroutine, for the event loop."""
        return self._opening.throw(*arguments)

    def close(self) -> None:
        """End the coroutine, which may not have begun."""
        self._opening.close()

    def __await__(self) -> Generator[Any, Any, _C]:
        return self._opening.__await__()

    async def __aenter__(self) -> _C:
        self._made = await self._opening
        return self._made

    async def __aexit__(self, *_exception: object) -> None:
        await self._made.close()
