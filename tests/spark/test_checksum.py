"""CRCs of many records at once: as good as one by one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from spark_jobs.logs import checksum, schema
from spark_jobs.logs.checksum import crc32c, record_crcs, record_ok, run_ok

BLOCK = 16384


class Good(NamedTuple):
    """A block of good records, and the version of the format that they are of."""

    records: np.ndarray
    version: int

    def flipped(self, records: np.ndarray | slice, bit: int) -> np.ndarray:
        bad = self.records.copy()
        raw = bad.view(np.uint8).reshape(BLOCK, schema.RECORD_BYTES)
        raw[records, bit // 8] ^= np.uint8(1 << (bit % 8))
        return bad


def sign(records: np.ndarray, version: int) -> None:
    records["aux"] &= np.uint64(0xFFFFFFFF)
    records["aux"] |= record_crcs(records, version).astype(np.uint64) << np.uint64(32)


@pytest.fixture(scope="module", params=schema.VERSIONS)
def good(request: pytest.FixtureRequest) -> Good:
    random = np.random.default_rng(1)
    raw = random.integers(0, 256, (BLOCK, schema.RECORD_BYTES), dtype=np.uint8)
    records = raw.reshape(-1).view(schema.RECORD)
    sign(records, request.param)
    return Good(records, request.param)


def test_a_known_checksum() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"56789", crc32c(b"1234")) == 0xE3069283


def test_without_the_library_all_is_as_it_is_with_it(
    good: Good, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksum, "_library", None)
    test_a_known_checksum()
    records = good.records[:2000].copy()
    assert record_ok(records, good.version).all()
    records["ts"][7] += np.uint64(1)
    assert np.flatnonzero(~record_ok(records, good.version)).tolist() == [7]


def test_each_record_has_the_crc_of_its_bytes(good: Good) -> None:
    for record in good.records[:: BLOCK // 16]:
        raw = record.tobytes()
        covered = raw[:60] if good.version > 1 else raw[:60] + bytes(4)
        assert crc32c(covered) == int(record["aux"]) >> 32


def test_good_runs_are_checked_by_one_call(good: Good, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in them, and however many they are."""

    def one_by_one(records: np.ndarray, version: int) -> np.ndarray:
        raise AssertionError("a good run was taken apart")

    others = good.records.copy()
    others["ts"] += np.uint64(12345)
    others["kind"] = 2
    sign(others, good.version)
    monkeypatch.setattr(checksum, "record_crcs", one_by_one)
    for records in (good.records, others, np.roll(others, 77)):
        for length in (BLOCK, BLOCK - 64, 4096, 100, 2, 1, 0):
            assert record_ok(records[:length], good.version).all()
    assert record_ok(np.concatenate([good.records, others[:50]]), good.version).all()


def test_of_the_other_version_none_is_good(good: Good) -> None:
    assert not record_ok(good.records, 3 - good.version).any()


def test_any_few_flipped_bits_are_found_where_they_are(good: Good) -> None:
    random = np.random.default_rng(2)
    for _ in range(100):
        records = random.choice(BLOCK, random.integers(1, 6), replace=False)
        bad = good.flipped(records, int(random.integers(0, 512)))
        assert set(np.flatnonzero(~record_ok(bad, good.version))) == set(records)


@pytest.mark.parametrize("step", [1, 2, 4, 64, 100, 256, 8192])
@pytest.mark.parametrize("bit", [0, 200, 479, 480, 511])
def test_the_same_bit_flipped_at_regular_distances_does_not_cancel_out(
    good: Good, step: int, bit: int
) -> None:
    assert not run_ok(good.flipped(slice(None, None, step), bit), good.version)


@pytest.mark.parametrize("count", [64, 128, 256, 1024, BLOCK])
def test_zeroed_pages_are_found(good: Good, count: int) -> None:
    bad = good.records.copy()
    bad[:count] = np.zeros((), dtype=schema.RECORD)
    assert np.count_nonzero(~record_ok(bad, good.version)) == count


def test_blocks_of_other_lengths(good: Good) -> None:
    for length in (10, BLOCK // 2, BLOCK - 1):
        bad = good.flipped(np.array([5, length - 1]), 3)[:length]
        assert np.flatnonzero(~record_ok(bad, good.version)).tolist() == [5, length - 1]


def test_a_flipped_bit_is_found_in_whichever_record(good: Good) -> None:
    for at in (0, 1, BLOCK // 2, BLOCK - 2, BLOCK - 1, *range(0, BLOCK, BLOCK // 64)):
        for bit in (0, (at * 37) % 512, 511):
            assert not run_ok(good.flipped(np.array([at]), bit), good.version)


def test_equal_errors_in_any_two_records_do_not_cancel_out(good: Good) -> None:
    random = np.random.default_rng(3)
    for _ in range(300):
        two = random.choice(BLOCK, 2, replace=False)
        assert not run_ok(good.flipped(two, int(random.integers(0, 512))), good.version)


def test_two_records_that_changed_places_are_two_good_ones(good: Good) -> None:
    swapped = good.records.copy()
    swapped[[3, 900]] = swapped[[900, 3]]
    assert record_ok(swapped, good.version).all()
