"""What one check found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is; only a problem makes the exit status 1."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence, and what to do about it; `check` says what was looked at."""

    level: Level
    check: str
    text: str
    advice: str = ""
    segment: str | None = None


def ok(check: str, text: str, *, segment: str | None = None) -> Finding:
    """Nothing to do."""
    return Finding(Level.OK, check, text, segment=segment)


def warning(check: str, text: str, advice: str, *, segment: str | None = None) -> Finding:
    """A finding that works now, and may not later."""
    return Finding(Level.WARNING, check, text, advice, segment)


def problem(check: str, text: str, advice: str, *, segment: str | None = None) -> Finding:
    """A finding that does not work, or loses time."""
    return Finding(Level.PROBLEM, check, text, advice, segment)
