"""What a job hands back to the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

from spark_jobs.logs.quality import FileReport

Row = Mapping[str, Any]


@dataclass
class JobResult:
    """What a job found: `rows` as in docs/spark.md, `violation`: a guarantee was broken.

    `shown`: what people see in place of the rows, the worst first. `broken`: which rows make a
    violation, for jobs where rows do. `further`: rows of another kind, under their names; `broken`
    is asked of them, too.
    """

    rows: list[dict[str, Any]]
    reports: list[FileReport]
    violation: bool = False
    totals: dict[str, Any] = field(default_factory=dict)
    shown: list[dict[str, Any]] | None = None
    broken: Callable[[Row], bool] | None = field(default=None, compare=False)
    further: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._judge()

    def _judge(self) -> None:
        if self.broken is not None:
            self.violation = any(map(self.broken, chain(self.rows, *self.further.values())))

    def only(self, wanted: Mapping[str, str]) -> None:
        """Leaves out rows, and their violations, that do not match these patterns, by column."""

        def matches(row: Row) -> bool:
            columns = [name for name in wanted if name in row]
            return all(fnmatchcase(str(row[name]), wanted[name]) for name in columns)

        self.rows = list(filter(matches, self.rows))
        if self.shown is not None:
            self.shown = list(filter(matches, self.shown))
        self.further = {name: list(filter(matches, rows)) for name, rows in self.further.items()}
        self._judge()
