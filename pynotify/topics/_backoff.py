"""How a consumer backs off while its handler fails: NSQ's state machine, without a clock.

    level 0    everything is well, max_in_flight messages at a time
    level n    it takes nothing for a while, then one message as a probe; the pause doubles
               from level to level

A failure raises the level, unless the pause would then exceed the longest one, a success lowers it;
at each level but 0 it pauses again before the next probe.  What comes back during a pause, from
messages that were taken before it, counts nothing: one result for each pause.
"""

from __future__ import annotations

import math
from enum import Enum

_LONGEST = 4e9  # more than a century: threads cannot sleep for three


class Outcome(Enum):
    """The outcome of handling a message."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEUTRAL = "neutral"  # the handler has requeued it by itself, which says nothing


class Backoff:
    """The back-off of one consumer.  `now` is any clock's seconds."""

    def __init__(self, first: float, longest: float) -> None:
        if not (math.isfinite(longest) and 0 <= first <= longest):
            raise ValueError(f"backoff must be (first, longest) seconds, is ({first}, {longest})")
        self._first, self._longest = min(first, _LONGEST), min(longest, _LONGEST)
        self._until = -math.inf
        self.level = 0

    def pause(self, now: float) -> float:
        """Seconds for which no message may be taken; 0: go on."""
        return max(self._until - now, 0.0)

    @property
    def in_flight(self) -> int:
        """How many messages at a time outside of a pause; -1: as many as ever."""
        return 1 if self.level else -1

    def record(self, outcome: Outcome, now: float) -> None:
        """Take note of the outcome of a message that was handled."""
        if now < self._until:
            return
        if outcome is Outcome.SUCCESS and self.level:
            self.level -= 1
        elif outcome is Outcome.FAILURE and self.duration(self.level + 1) <= self._longest:
            self.level += 1
        if self.level:
            self._until = now + min(self.duration(self.level), self._longest)

    def duration(self, level: int) -> float:
        """The pause at a level in seconds, not bounded."""
        return math.ldexp(self._first, min(level, 100) - 1)

    def delay(self, attempts: int) -> float:
        """Seconds for which a message that has failed so often is put off."""
        return min(self.duration(attempts), self._longest)
