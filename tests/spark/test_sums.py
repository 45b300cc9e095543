"""Sums of blocks of messages, against comparing message by message; no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from logwriter import LogWriter, receives, sends

from spark_jobs.audit import partials as of_one_log
from spark_jobs.audit import sums
from spark_jobs.audit.debt import BASE_BITS
from spark_jobs.audit.sums import BLOCK_BITS, CHANNEL_BITS, Blocks, Sums, compare, joined, mixed
from spark_jobs.engine.partials import batch
from spark_jobs.jobs import audit
from spark_jobs.logs.reader import LogReader
from spark_jobs.survey import survey

SIZE = 1 << BLOCK_BITS
Messages = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def crcs(number: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return ((number * 2654435761) & 0xFFFFFFFF).astype(np.uint64)


def summed(messages: Messages, pieces: int = 1) -> Blocks:
    collected = Sums()
    for number, crc in zip(*(np.array_split(each, pieces) for each in messages), strict=True):
        collected.add(number, crc)
        collected.is_full()
    found = collected.take()
    assert found is not None
    return found


def test_any_bit_of_number_or_checksum_changes_half_of_the_sum() -> None:
    number, crc = np.array([123456789]), np.array([987654321], dtype=np.uint32)
    before = mixed(number, crc)
    others = [mixed(number ^ (1 << bit), crc) for bit in range(40)]
    others += [mixed(number, crc ^ np.uint32(1 << bit)) for bit in range(32)]
    changed = [int(np.bitwise_count(before ^ other)[0]) for other in others]
    assert min(changed) >= 12
    assert 28 < np.mean(changed) < 36


def test_two_checksums_that_changed_places_do_not_cancel_out() -> None:
    number = np.arange(2 * SIZE)
    crc = crcs(number)
    swapped = crc.copy()
    swapped[[5, 9]] = crc[[9, 5]]
    sent, received = summed((number, crc)), summed((number, swapped))
    assert compare(sent, received, np.array([0])).suspects.tolist() == [0]


def test_pieces_and_order_within_a_block_make_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(1)
    number = np.arange(100_000)
    whole = summed((number, crcs(number)))
    blocks = number // SIZE * SIZE
    shuffled = number[np.lexsort((random.random(len(number)), blocks))]
    monkeypatch.setattr(sums, "HELD", 50)
    for other in (summed((number, crcs(number)), 99), summed((shuffled, crcs(shuffled)))):
        assert np.array_equal(other.place, whole.place)
        assert np.array_equal(other.count, whole.count)
        assert np.array_equal(other.total, whole.total)


def test_a_full_collection_holds_few_blocks_when_runs_are_of_the_same_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sums, "HELD", 100)
    collected = Sums()
    for _ in range(500):
        collected.add(np.arange(SIZE - 2, SIZE + 2), np.zeros(4, dtype=np.uint64))
        assert not collected.is_full()
    found = collected.take()
    assert found is not None
    assert found.count.tolist() == [1000, 1000]
    assert collected.take() is None
    scattered = np.arange(100) * SIZE
    collected.add(scattered, np.zeros(100, dtype=np.uint64))
    assert collected.is_full()


def test_what_differs_is_what_comparing_messages_finds() -> None:
    """Three channels from two senders each, five logs that lose, repeat and change at random."""
    random = np.random.default_rng(2)
    channels = np.repeat(np.arange(3), 20 * SIZE)
    sent = (channels << BASE_BITS) | np.tile(np.arange(20 * SIZE), 3)
    sent = sent[(sent >> BLOCK_BITS) % 7 != 3]  # blocks whose sender left no log
    owner = random.integers(0, 2, len(sent))
    parts = [summed((sent[owner == i], crcs(sent[owner == i])), 10) for i in (0, 1)]
    received, channel_of, unsent, suspects = [], [], [], set()
    for log in range(5):
        channel = log % 3
        number = (channel << BASE_BITS) | np.arange(random.integers(0, SIZE), 20 * SIZE)
        number = np.delete(number, random.choice(len(number), 3))
        number = np.sort(np.append(number, random.choice(number, 2)))
        crc = crcs(number)
        crc[random.choice(len(crc), 2)] ^= np.uint64(1 << 31)
        at = summed((number, crc), 7)
        place = (at.place & ((1 << CHANNEL_BITS) - 1)) | (log << CHANNEL_BITS)
        received.append(Blocks(place, at.count, at.total))
        channel_of.append(channel)
        block = number >> BLOCK_BITS
        unsent.append(int(np.count_nonzero(block % 7 == 3)))
        for each in np.unique(block[block % 7 != 3]).tolist():
            mine = block == each
            pairs = sorted(zip(number[mine].tolist(), crc[mine].tolist(), strict=True))
            theirs = sent[sent >> BLOCK_BITS == each]
            if pairs != sorted(zip(theirs.tolist(), crcs(theirs).tolist(), strict=True)):
                suspects.add(each)
    found = compare(joined(parts), joined(received), np.array(channel_of))
    assert found.unsent.tolist() == unsent
    assert set(found.suspects.tolist()) == suspects
    assert 5 < len(suspects) < 30


def test_the_second_reading_is_of_suspect_blocks_only(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    seq = np.arange(5 * SIZE)
    for channel in ("a", "b"):
        sends(log, channel, seq)
        receives(log, channel, seq)
    log.write()
    (found,) = survey([tmp_path]).logs
    reader = LogReader(found)
    engine = f"{found.boot_id}/{found.engine}"
    suspects = {(engine, 1, "b"): np.array([1, 4]), (engine, 2, "a"): np.array([0])}
    partials = audit.Partials(reader, suspects)
    rows = [row for chunk in reader.chunks() for row in partials.add(chunk)]
    rows += list(partials.finish())
    seen: dict[str, list[np.ndarray[Any, Any]]] = {"sent": [], "received": []}
    for row in rows:
        assert set(row["channel"].to_pylist()) == {"b"}
        for block, offsets in zip(row["block"], row["offsets"].to_pylist(), strict=True):
            seen[row["role"]].append((block << 16) + np.frombuffer(offsets, dtype="<u2"))
    for numbers in seen.values():
        expected = np.concatenate([seq[SIZE : 2 * SIZE], seq[4 * SIZE :]])
        assert np.array_equal(np.concatenate(numbers), expected)


def test_groups_of_blocks_are_compared_each_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_one_log, "GROUP_BITS", 1)
    seq = np.arange(5 * SIZE)
    sender, listener = LogWriter(tmp_path, 9), LogWriter(tmp_path, 1)
    for channel in ("a", "b"):
        sends(sender, channel, seq[: 4 * SIZE])
        receives(listener, channel, np.delete(seq, 3 * SIZE + 5))
    sender.write()
    listener.write()
    schema = pa.schema(audit.Partials.COLUMNS)
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for log in survey([tmp_path]).logs:
        reader = LogReader(log)
        partials = audit.Partials(reader)
        rows = [row for chunk in reader.chunks() for row in partials.add(chunk)]
        for columns in (*rows, *partials.finish()):
            for row in batch(schema, columns).to_pylist():
                if row["block"] is not None:
                    key = tuple(row[name] for name in (*audit.KEYS, "block"))
                    groups.setdefault(key, []).append(row)
    assert len(groups) == 2 * 3  # five blocks by twos
    found: dict[str, list[Any]] = {"compared": [], "suspects": []}
    for key, rows in groups.items():
        table = pa.Table.from_pylist(rows, schema=schema)
        for row in audit._compare_sums(dict(zip((*audit.KEYS, "block"), key, strict=True)), table):
            value = row["no_send"] if row["role"] == "compared" else row["blocks"]
            found[row["role"]].append((row["channel"], value))
    assert sorted(found["suspects"]) == [("a", [3]), ("b", [3])]
    assert sorted(found["compared"]) == [("a", SIZE), ("b", SIZE)]
