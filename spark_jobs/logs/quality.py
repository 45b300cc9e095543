"""What is wrong with a log, and why; a damaged log costs its damaged part only.

A *damaged* file has lost records that it claims, or cannot say what it holds. An *incomplete* log
is one that is damaged, lacks a file, or dropped records when it was written: what it does not show
proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spark_jobs.logs.checksum import crc32c
from spark_jobs.logs.schema import (
    ENDIAN,
    HEADER,
    HEADER_BYTES,
    HEADER_CRC_BYTES,
    MAGIC,
    RECORD_BYTES,
)


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


def header_problem(raw: bytes) -> str | None:
    """Why these first bytes of a file are no usable header; None when they are one."""
    problem = None
    magic = raw[: len(MAGIC)]
    if len(raw) == 0:
        problem = "empty file"
    elif len(magic) == len(MAGIC) and magic[:-1] == MAGIC[:-1] and magic[-1] != MAGIC[-1]:
        problem = f"version {magic[-1]} of the format; only version {MAGIC[-1]} is known"
    elif not MAGIC.startswith(magic):
        problem = "wrong magic: not a pynlog file, or one whose header was overwritten"
    elif len(raw) < HEADER_BYTES:
        problem = f"header cut off after {len(raw)} of {HEADER_BYTES} bytes"
    else:
        header = np.frombuffer(raw, dtype=HEADER, count=1)[0]
        offset, length = int(header["schema_off"]), int(header["schema_len"])
        if header["endian"] != ENDIAN:
            problem = "written on a machine of another byte order"
        elif crc32c(raw[:HEADER_CRC_BYTES]) != header["header_crc"]:
            problem = "header CRC does not match"
        elif header["header_len"] != HEADER_BYTES or header["record_len"] != RECORD_BYTES:
            problem = "unknown header or record length"
        elif crc32c(raw[offset : offset + length]) != header["schema_id"]:
            problem = "schema text does not match its CRC"
    return problem
