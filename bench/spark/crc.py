"""What it costs to check the CRCs of log records, ns of processor time a record.

    python -m bench.spark.crc

A chunk of good records as the jobs read them, in memory: by one call of the library for the run,
which is what they do (`spark_jobs.logs.checksum`), by one for each record, and by numpy's tables.
Other libraries of the kind stand beside it where they are installed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from bench.report import running
from spark_jobs.logs import checksum
from spark_jobs.logs.model import CHUNK_RECORDS
from spark_jobs.logs.schema import RECORD, RECORD_BYTES, VERSIONS

_PASSES, _PASS_S = 11, 0.05
_OTHERS = {
    "google-crc32c, of a copy": ("google_crc32c", "value", True),
    "awscrt": ("awscrt.checksums", "crc32c", False),
}


def good(version: int) -> NDArray[np.void]:
    """A chunk of them, of that version of the format."""
    raw = np.random.default_rng(1).integers(0, 256, CHUNK_RECORDS * RECORD_BYTES, dtype=np.uint8)
    records = raw.view(RECORD)
    records["aux"] &= np.uint64(0xFFFFFFFF)
    crcs = checksum.record_crcs(records, version).astype(np.uint64)
    records["aux"] |= crcs << np.uint64(32)
    return records


def cost(work: Callable[[], object]) -> list[float]:
    """ns of processor time a record, of a chunk of them, in some passes."""
    began = time.process_time()
    work()
    calls = max(1, round(_PASS_S / max(time.process_time() - began, 1e-6)))
    found = []
    for _ in range(_PASSES):
        began = time.process_time()
        for _ in range(calls):
            work()
        found.append((time.process_time() - began) / calls / CHUNK_RECORDS * 1e9)
    return found


def _copied(call: Callable[[bytes], int], raw: memoryview) -> int:
    return call(raw.tobytes())


def _as_it_is(call: Callable[[memoryview], int], raw: memoryview) -> int:
    return call(raw)


def figures() -> Iterator[tuple[str, list[float]]]:
    """What, and ns a record."""
    for version in reversed(VERSIONS):
        records = good(version)
        assert checksum.run_ok(records, version)
        run = cost(partial(checksum.run_ok, records, version))
        yield f"a run of version {version}, by one call", run
    records = good(VERSIONS[-1])
    raw = records.view(np.uint8).data
    rows = [bytes(raw[at : at + 60]) for at in range(0, len(raw), RECORD_BYTES)]
    yield "each record, by a call", cost(lambda: [checksum.crc32c(row) for row in rows])
    yield "each record, by numpy's tables", cost(lambda: checksum.record_crcs(records))
    for name, (module, function, copies) in _OTHERS.items():
        try:
            call = getattr(import_module(module), function)
        except ImportError:
            continue
        yield f"a run by {name}", cost(partial(_copied if copies else _as_it_is, call, raw))


def main() -> None:
    with running(None) as settings:
        for what, ns in figures():
            settings.alone("crc", what, "ns", ns, command="python -m bench.spark.crc")


if __name__ == "__main__":
    main()
