"""CRCs of many records at once: as good as one by one."""

from __future__ import annotations

import numpy as np
import pytest

from spark_jobs.logs import checksum, schema
from spark_jobs.logs.checksum import crc32c, digest, record_crcs, record_ok

BLOCK = 16384


@pytest.fixture(scope="module")
def good() -> np.ndarray:
    random = np.random.default_rng(1)
    raw = random.integers(0, 256, (BLOCK, schema.RECORD_BYTES), dtype=np.uint8)
    records = raw.reshape(-1).view(schema.RECORD)
    sign(records)
    return records


def sign(records: np.ndarray) -> None:
    records["aux"] &= np.uint64(0xFFFFFFFF)
    records["aux"] |= record_crcs(records).astype(np.uint64) << np.uint64(32)


def flipped(good: np.ndarray, records: np.ndarray | slice, bit: int) -> np.ndarray:
    bad = good.copy()
    raw = bad.view(np.uint8).reshape(BLOCK, schema.RECORD_BYTES)
    raw[records, bit // 8] ^= np.uint8(1 << (bit % 8))
    return bad


def test_a_known_checksum() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_the_digest_is_the_same_for_all_good_blocks(good: np.ndarray) -> None:
    others = good.copy()
    others["ts"] += np.uint64(12345)
    others["kind"] = 2
    sign(others)
    assert digest(good) == digest(others) == digest(np.roll(good, 77))
    assert record_ok(good).all()


def test_good_blocks_are_not_checked_one_by_one(
    good: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_by_one(records: np.ndarray) -> np.ndarray:
        raise AssertionError("a good block was taken apart")

    monkeypatch.setattr(checksum, "record_crcs", one_by_one)
    assert record_ok(good).all()
    assert record_ok(good[: BLOCK - 64]).all()  # the end of a file of 64 MiB
    assert record_ok(good[: BLOCK // 4]).all()


def test_any_few_flipped_bits_are_found_where_they_are(good: np.ndarray) -> None:
    random = np.random.default_rng(2)
    for _ in range(100):
        records = random.choice(BLOCK, random.integers(1, 6), replace=False)
        bad = flipped(good, records, int(random.integers(0, 512)))
        assert set(np.flatnonzero(~record_ok(bad))) == set(records)


@pytest.mark.parametrize("step", [1, 2, 4, 64, 100, 256, 8192])
@pytest.mark.parametrize("bit", [0, 200, 479, 480, 511])
def test_the_same_bit_flipped_at_regular_distances_does_not_cancel_out(
    good: np.ndarray, step: int, bit: int
) -> None:
    bad = flipped(good, slice(None, None, step), bit)
    assert digest(bad) != digest(good)


@pytest.mark.parametrize("count", [64, 128, 256, 1024, BLOCK])
def test_zeroed_pages_are_found(good: np.ndarray, count: int) -> None:
    bad = good.copy()
    bad[:count] = np.zeros((), dtype=schema.RECORD)
    assert np.count_nonzero(~record_ok(bad)) == count


def test_blocks_of_other_lengths(good: np.ndarray) -> None:
    for length in (0, 1, 100, BLOCK - 1):
        assert record_ok(good[:length]).all()
    for length in (10, BLOCK // 2, BLOCK - 1):
        bad = flipped(good, np.array([5, length - 1]), 3)[:length]
        assert np.flatnonzero(~record_ok(bad)).tolist() == [5, length - 1]


def test_a_flipped_bit_is_found_in_whichever_slice_and_group(good: np.ndarray) -> None:
    """The first and last record of each slice too, where shifted rows overlap."""
    step = BLOCK // 128
    for record in range(0, BLOCK, step):
        for at in (record, record + step - 1):
            assert digest(flipped(good, np.array([at]), (at * 37) % 512)) != digest(good)


def test_equal_errors_in_any_two_records_do_not_cancel_out(good: np.ndarray) -> None:
    random = np.random.default_rng(3)
    for _ in range(300):
        two = random.choice(BLOCK, 2, replace=False)
        assert digest(flipped(good, two, int(random.integers(0, 512)))) != digest(good)
