"""tests/vectors/pubsub.json, its runs written out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pynotify.pubsub._format import NOTHING

PATH = Path(__file__).resolve().parent.parent / "vectors" / "pubsub.json"
_TEXT = json.loads(PATH.read_text(encoding="utf-8"))
LIMIT: int = _TEXT["limit"]


class Sent(NamedTuple):
    """`obj` is sent as `segments`, the limit being `limit` bytes."""

    name: str
    obj: Any
    segments: list[bytes]
    limit: int


class Heard(NamedTuple):
    """`payloads` make `objects`, and `malformed` of them are counted and skipped."""

    name: str
    payloads: list[bytes]
    objects: list[Any]
    malformed: int


def _value(value: dict[str, Any]) -> Any:
    times = value.get("times", 1)
    if "none" in value:
        return NOTHING
    if "text" in value:
        return value["text"] * times
    if "bytes" in value:
        return bytes.fromhex(value["bytes"]) * times
    if "member" in value:
        name, text, times = value["member"]
        return {name: text * times}
    return value["json"]


def _runs(runs: list[Any]) -> str:
    return "".join(text * times for text, times in runs)


def _segments(row: dict[str, Any]) -> list[bytes]:
    if "pieces" not in row:
        segments = [s if isinstance(s, str) else _runs(s["runs"]) for s in row["segments"]]
    else:
        encoded = _runs(row["base64"])
        lengths = [length for length, times in row["pieces"] for _ in range(times)]
        assert sum(lengths) == len(encoded), row["name"]
        segments = []
        for length in lengths:
            segments.append("#" + encoded[:length])
            encoded = encoded[length:]
        segments[-1] = "$" + segments[-1][1:]
    return [segment.encode() for segment in segments]


def as_received(obj: Any) -> Any:
    return None if obj is NOTHING else obj


def _heard(row: dict[str, Any]) -> Heard:
    payloads = [payload.encode() for payload in row["payloads"]]
    objects = [as_received(_value(value)) for value in row["values"]]
    return Heard(row["name"], payloads, objects, row.get("count", 0))


SENT = [
    Sent(row["name"], _value(row["value"]), _segments(row), row.get("limit", LIMIT))
    for row in _TEXT["sent"]
]
#: Those that go over PostgreSQL.
USUAL = [row for row in SENT if row.limit == LIMIT]
HEARD = [_heard(row) for row in (*_TEXT["accepted"], *_TEXT["malformed"])]


def each(rows: list[Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", rows, ids=lambda row: row.name)
