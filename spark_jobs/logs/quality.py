"""What is wrong with a log, and why; a damaged log costs its damaged part only.

A *damaged* file has lost records that it claims, or cannot say what it holds. An *incomplete* log
is one that is damaged, lacks a file, or dropped records when it was written: what it does not show
proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class FileReport:
    """State of one log file: whole records read, records lost to damage, and what was found."""

    file: str
    records: int = 0
    damaged: int = 0
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """An entry of ``segments`` in a job's summary."""
        return {
            "file": self.file,
            "records": self.records,
            "damaged": self.damaged,
            "problems": self.problems,
        }
