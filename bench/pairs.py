"""Alternating passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def alternate(passes: Sequence[Callable[[], T]], repetitions: int) -> list[list[T]]:
    """Run every pass `repetitions` times, the order turned round each time.

    The first round is a warm-up and does not count.  Returns the values of each pass.
    """
    values: list[list[T]] = [[] for _ in passes]
    for repetition in range(repetitions + 1):
        order = list(range(len(passes)))
        if repetition % 2:
            order.reverse()
        for i in order:
            value = passes[i]()
            if repetition:
                values[i].append(value)
    return values
