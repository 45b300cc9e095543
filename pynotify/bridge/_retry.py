"""How long to wait before the next attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class RetryDelay:
    """Seconds, twice as many each time, from `first` up to `longest`.

    The upper half of each is left to `random`: after a restart of the server the bridges of many
    hosts must not come back in step.
    """

    def __init__(self, first: float, longest: float, random: Callable[[], float]) -> None:
        if not 0 < first <= longest:
            raise ValueError(f"0 < first_delay <= longest_delay does not hold: {first}, {longest}")
        self._first = first
        self._longest = longest
        self._random = random
        self._next = first

    def next(self) -> float:
        """The delay before the next attempt."""
        bound, self._next = self._next, min(2 * self._next, self._longest)
        return bound * (0.5 + 0.5 * self._random())

    def reset(self) -> None:
        """Begin with the first delay again, after a success."""
        self._next = self._first
