"""Log files that were overwritten and cut, for `make fuzz`: read, or reported, and nothing else.

    python tests/spark/fuzz_logs.py SECONDS [SEED]

What is read of a damaged file is what stood in it at first: a record is whole or it is not there.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from logwriter import LogWriter, receives, sends

from spark_jobs.logs.reader import LogReader
from spark_jobs.logs.schema import HEADER_BYTES, RECORD_BYTES
from spark_jobs.survey import survey

_EXTREMES = (b"\0", b"\xff", b"\x7f", b"\x80", b"\x01", b"\xff" * 8, b"\0" * 64)


def originals(directory: Path) -> dict[Path, bytes]:
    """A log of two files, and what is in them."""
    log = LogWriter(directory)
    for channel in ("c", "a channel whose name takes more than one record " * 4):
        receives(log, channel, np.arange(40))
        sends(log, channel, np.arange(20))
    return {path: path.read_bytes() for path in log.write(files=2)}


def damaged(data: bytes, chance: random.Random) -> bytes:
    result = bytearray(data)
    for _ in range(chance.randrange(1, 6)):
        # A header is small beside the records, and deserves as much.
        size = max(1, len(result) if chance.random() < 0.5 else min(len(result), HEADER_BYTES))
        at = chance.randrange(size)
        what = chance.random()
        if what < 0.4:
            result[at : at + 1] = bytes([chance.randrange(256)])
        elif what < 0.7:
            piece = chance.choice(_EXTREMES)
            result[at : at + len(piece)] = piece
        elif what < 0.8:
            other = chance.randrange(size)
            result[at : at + RECORD_BYTES] = result[other : other + RECORD_BYTES]
        elif what < 0.9:
            del result[at:]
        else:
            result += chance.randbytes(chance.randrange(200))
    return bytes(result)


def run(directory: Path, files: dict[Path, bytes], seed: int) -> None:
    chance = random.Random(seed)
    for path, data in files.items():
        path.write_bytes(damaged(data, chance) if chance.random() < 0.8 else data)
    written = {
        data[at : at + RECORD_BYTES]
        for data in files.values()
        for at in range(HEADER_BYTES, len(data), RECORD_BYTES)
    }
    found = survey([directory])
    for report in found.unreadable:
        assert report.problems, f"seed {seed}: {report}"
    for log in found.logs:
        reader = LogReader(log)
        for chunk in reader.chunks():
            for record in chunk.records:
                assert record.tobytes() in written, f"seed {seed}: made up: {record}"
        for report in reader.reports:
            assert not report.damaged or report.problems, f"seed {seed}: {report}"


def main(seconds: float, seed: int) -> None:
    until = time.monotonic() + seconds
    first = seed
    with tempfile.TemporaryDirectory() as name:
        files = originals(Path(name))
        while seed == first or time.monotonic() < until:
            run(Path(name), files, seed)
            seed += 1
    print(f"fuzz_logs: {seed - first} runs, seeds from {first} on")


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
