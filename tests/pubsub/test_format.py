"""The format against its vectors, both ways, and what no vector can say."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pynotify
from pubsub.vectors import HEARD, LIMIT, SENT, Heard, Sent, as_received, each
from pynotify.pubsub._assembly import Arrived, Assembler, Segment
from pynotify.pubsub._format import NOTHING, POSTGRES_LIMIT, Malformed, Pieces, contents, segments
from pynotify.pubsub._javascript import number, stringify


def assemble(payloads: list[bytes]) -> tuple[list[Any], pynotify.PubSubStats]:
    assembler = Assembler(max_object=64 << 20, max_pending=64 << 20)
    found = [assembler.take(Segment("c", 1, 1, payload)) for payload in payloads]
    return [arrived.obj for arrived in found if isinstance(arrived, Arrived)], assembler.stats()


def test_the_limit_is_that_of_the_vectors() -> None:
    assert POSTGRES_LIMIT == LIMIT


@each(SENT)
def test_objects_become_the_segments_of_the_vectors(row: Sent) -> None:
    assert segments(row.obj, row.limit) == row.segments


@each(SENT)
def test_segments_become_the_objects_of_the_vectors(row: Sent) -> None:
    objects, stats = assemble(row.segments)
    assert objects == [as_received(row.obj)]
    assert type(objects[0]) is type(as_received(row.obj))
    assert (stats.malformed, stats.pending, stats.pending_bytes) == (0, 0, 0)


@each(HEARD)
def test_what_others_send_is_understood_or_skipped(row: Heard) -> None:
    objects, stats = assemble(row.payloads)
    assert objects == row.objects
    assert (stats.received, stats.malformed) == (len(row.objects), row.malformed)
    assert (stats.pending, stats.pending_bytes) == (0, 0)


JSON = st.recursive(
    # Whole floats from 2**53 on are written as integers, and languages with such read other ones.
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(-1e15, 1e15),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
OBJECTS = JSON | st.text() | st.binary() | st.just(NOTHING)


@settings(max_examples=300, deadline=None)
@given(obj=OBJECTS, limit=st.sampled_from([2, 3, 5, 8, 64, LIMIT]))
def test_whatever_is_sent_is_received(obj: Any, limit: int) -> None:
    if isinstance(obj, str) and any("\ud800" <= char <= "\udfff" for char in obj):
        with pytest.raises(UnicodeEncodeError):
            segments(obj, limit)
        return
    payloads = segments(obj, limit)
    assert max(map(len, payloads)) <= limit
    assert all(0x20 <= byte <= 0x7E for payload in payloads for byte in payload)
    objects, stats = assemble(payloads)
    assert objects == [as_received(obj)]
    assert stats.malformed == 0


@settings(max_examples=300, deadline=None)
@given(payloads=st.lists(st.binary(max_size=40) | st.text("#$!@%A=", max_size=6).map(str.encode)))
def test_nothing_that_comes_raises(payloads: list[bytes]) -> None:
    _, stats = assemble(payloads)
    assert stats.received + stats.malformed <= len(payloads)


@pytest.mark.parametrize("obj", [math.nan, [math.inf], {"a": -math.inf}])
def test_what_json_has_no_number_for_is_refused(obj: object) -> None:
    with pytest.raises(ValueError, match="JSON"):
        segments(obj, LIMIT)


@pytest.mark.parametrize("obj", [object(), {1, 2}, {"a": b"bytes"}, {(1, 2): 3}])
def test_what_json_does_not_have_is_refused(obj: object) -> None:
    with pytest.raises(TypeError):
        segments(obj, LIMIT)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_everything_like_bytes_is_bytes(kind: type) -> None:
    assert segments(kind(b"abc"), LIMIT) == [b"%abc"]


def test_nested_too_deeply_is_malformed_and_no_recursion_error() -> None:
    with pytest.raises(Malformed):
        contents(b"@" + b"[" * 100_000 + b"]" * 100_000)


def test_a_number_too_long_to_read_is_malformed() -> None:
    with pytest.raises(Malformed):
        contents(b"@" + b"9" * 5000)


def test_a_segment_must_have_room_for_a_piece() -> None:
    with pytest.raises(pynotify.ProgrammingError, match="no room for a piece"):
        segments("é", 1)


def test_pieces_are_decoded_as_they_come() -> None:
    """So an unfinished object holds no more than its bytes."""
    pieces = Pieces()
    pieces.add(b"A" * 4000)
    assert len(pieces) == 3000


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1.0, "1"), (-1.5, "-1.5"), (123456789.125, "123456789.125"), (0.1, "0.1"),
        (1e20, "100000000000000000000"), (123456789012345680000.0, "123456789012345680000"),
        (1e21, "1e+21"), (1.25e22, "1.25e+22"), (1e-6, "0.000001"), (1.5e-6, "0.0000015"),
        (1e-7, "1e-7"), (5e-324, "5e-324"), (1.7976931348623157e308, "1.7976931348623157e+308"),
        (0.0, "0"), (-0.0, "0"), (100.0, "100"), (1e16, "10000000000000000"), (10.5, "10.5"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_javascript_writes_them(value: float, written: str) -> None:
    assert number(value) == written


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_survive(value: float) -> None:
    assert float(number(value)) == value


def test_floats_are_found_wherever_they_are() -> None:
    assert stringify({1.5e-7: [(2.0,), {"k": 1e21}], "x": [], "y": {}, True: None}) == (
        '{"1.5e-7":[[2],{"k":1e+21}],"x":[],"y":{},"true":null}'
    )
