"""What numpy alone takes for the same answers, on one core: the measure of `bench.spark.jobs`.

No checksums, no damage, no growing tables: the numbers of channels are taken to mean the same in
all logs, which holds for those that the benchmark writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spark_jobs.figures.histogram import BUCKETS, bucket
from spark_jobs.logs.schema import HEADER_BYTES, RECORD, RECORD_BYTES, Kind

_CHUNK = 16384
_BUFFERED = 1 << 20
_CHANNELS = 64


def _chunks(path: Path) -> Iterator[NDArray[Any]]:
    buffer = np.empty(_CHUNK, dtype=RECORD)
    with path.open("rb", buffering=0) as file:
        file.seek(HEADER_BYTES)
        while count := file.readinto(buffer.view(np.uint8).data) // RECORD_BYTES:
            yield buffer[:count]


def latency_histograms(files: Sequence[Path]) -> int:
    """A histogram per file and channel; returns how many records are in them."""
    counted = 0
    for path in files:
        keys: list[NDArray[np.int64]] = []
        counts = np.zeros(_CHANNELS * BUCKETS, dtype=np.int64)
        for chunk in _chunks(path):
            at = np.flatnonzero(chunk["kind"] == Kind.RECV)
            latency = chunk["ts"][at] - chunk["ref_ts"][at]
            keys.append(chunk["channel"][at] * np.int64(BUCKETS) + bucket(latency))
            if len(keys) * _CHUNK >= _BUFFERED:
                counts += np.bincount(np.concatenate(keys), minlength=len(counts))
                keys = []
        if keys:
            counts += np.bincount(np.concatenate(keys), minlength=len(counts))
        counted += int(counts.sum())
    return counted


def _sent(files: Sequence[Path]) -> tuple[int, NDArray[np.uint32], NDArray[np.int64]]:
    """Messages in the longest channel; the CRC of each message; and how many each channel has."""
    numbers, crcs = [], []
    for path in files:
        for chunk in _chunks(path):
            at = np.flatnonzero(chunk["kind"] == Kind.SEND)
            numbers.append(np.stack([chunk["channel"][at], chunk["chan_seq"][at]]).astype(np.int64))
            crcs.append(chunk["aux"][at].astype(np.uint32))
    channel, sequence = np.concatenate(numbers, axis=1)
    counts = np.bincount(channel, minlength=_CHANNELS)
    width = int(counts.max())
    table = np.zeros(_CHANNELS * width, dtype=np.uint32)
    table[channel * width + sequence] = np.concatenate(crcs)
    return width, table, counts


def audit(files: Sequence[Path]) -> tuple[int, int, int, int]:
    """(lost, duplicate, out of order, corrupted) over all listeners, by a byte per message."""
    width, crcs, counts = _sent(files)
    logs: dict[bytes, list[Path]] = {}
    for path in files:
        with path.open("rb") as file:
            logs.setdefault(file.read(HEADER_BYTES)[32:40], []).append(path)
    lost = duplicate = late = corrupted = 0
    for members in logs.values():
        seen = np.zeros(_CHANNELS * width, dtype=np.uint8)
        last = np.full(_CHANNELS, -1, dtype=np.int64)
        received = 0
        for path in sorted(members, key=lambda path: int(path.name.split(".")[-2])):
            for chunk in _chunks(path):
                at = np.flatnonzero(chunk["kind"] == Kind.RECV)
                if len(at) == 0:
                    continue
                channel = chunk["channel"][at].astype(np.int64)
                sequence = chunk["chan_seq"][at].astype(np.int64)
                number = channel * width + sequence
                seen[number] = 1
                received += len(at)
                crc = chunk["aux"][at].astype(np.uint32)
                corrupted += int(np.count_nonzero(crcs[number] != crc))
                order = np.argsort(channel.astype(np.uint16), kind="stable")
                channel, sequence = channel[order], sequence[order]
                first = np.flatnonzero(np.diff(channel, prepend=-1))
                before = np.roll(sequence, 1)
                before[first] = last[channel[first]]
                late += int(np.count_nonzero(sequence < before))
                last[channel] = sequence
        distinct = int(np.count_nonzero(seen))
        duplicate += received - distinct
        lost += int(counts[last >= 0].sum()) - distinct
    return lost, duplicate, late, corrupted
