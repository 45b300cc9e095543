"""What a job hands back to the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spark_jobs.logs.quality import FileReport


@dataclass
class JobResult:
    """What a job found: `rows` as in docs/spark.md, `violation`: a guarantee was broken."""

    rows: list[dict[str, Any]]
    reports: list[FileReport]
    violation: bool = False
    totals: dict[str, Any] = field(default_factory=dict)
