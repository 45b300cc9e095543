"""Files for HdrHistogram's plotters, read as strictly as the strictest of them."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

from spark_jobs.figures.hgrm import text
from spark_jobs.figures.histogram import bucket

LINE = re.compile(r" *(\d+\.\d{3}) ([01]\.\d{12}) +(\d+)(?: +(\d+\.\d{2}))?")
FOOTER = (
    re.compile(r"#\[Mean    = +(\d+\.\d{3}), StdDeviation   = +(\d+\.\d{3})\]"),
    re.compile(r"#\[Max     = +(\d+\.\d{3}), Total count    = +(\d+)\]"),
    re.compile(r"#\[Buckets = +(\d+), SubBuckets     = +(\d+)\]"),
)


def parse(content: str) -> tuple[list[tuple[float, float, int]], list[tuple[str, ...]]]:
    """(value, percentile, count) of each line, and the numbers of the footer."""
    assert content.endswith("]\n")
    lines = content.splitlines()
    assert lines[0].split() == ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"]
    assert lines[1] == ""
    rows = []
    body, footer = lines[2:-3], lines[-3:]
    for line in body:
        found = LINE.fullmatch(line)
        assert found is not None, line
        value, level, count, inverse = found.groups()
        assert (inverse is None) == (line is body[-1])
        if inverse is not None:
            assert float(inverse) == pytest.approx(1 / (1 - float(level)), abs=0.006, rel=1e-4)
        rows.append((float(value), float(level), int(count)))
    numbers = []
    for form, line in zip(FOOTER, footer, strict=True):
        found = form.fullmatch(line)
        assert found is not None, line
        numbers.append(found.groups())
    return rows, numbers


@pytest.mark.parametrize("count", [1, 2, 7, 1000, 50_000])
def test_a_strict_parser_reads_the_distribution(count: int) -> None:
    values = np.random.default_rng(count).lognormal(9, 2, count).astype(np.int64) + 1
    buckets, counts = np.unique(bucket(values), return_counts=True)
    rows, numbers = parse(text(buckets, counts, int(values.max())))
    for before, after in pairwise(rows):
        assert before[0] <= after[0]
        assert before[1] < after[1]
        assert before[2] <= after[2]
    assert rows[0][1] == (0.0 if len(rows) > 1 else 1.0)
    assert rows[-1][0] == pytest.approx(values.max() / 1000, abs=0.001)
    assert rows[-1][1:] == (1.0, count)
    ordered = np.sort(values)
    for value, level, reached in rows:
        rank = max(1, int(np.ceil(level * count)))
        # levels are sums of fractions, as HdrHistogram's are: the next rank where that tells
        low, high = ordered[rank - 1] / 1000, ordered[min(rank, count - 1)] / 1000
        assert low / (1 + 1 / 255) - 0.001 <= value <= high * (1 + 1 / 255) + 0.001
        assert reached >= rank
    mean, deviation = map(float, numbers[0])
    assert mean == pytest.approx(values.mean() / 1000, rel=0.004, abs=0.001)
    assert deviation == pytest.approx(values.std() / 1000, rel=0.02, abs=0.001)
    assert float(numbers[1][0]) == rows[-1][0]
    assert int(numbers[1][1]) == count
