"""The fixtures of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import pynotify
from pubsub.server import postgres

if TYPE_CHECKING:
    from kombu_peer import Peers

__all__ = ["peers", "postgres"]


@pytest.fixture
def peers(segment_name: str) -> Iterator[Peers]:
    """kombu connections; afterwards no slot of the segment is in use."""
    from kombu_peer import Peers

    made = Peers(segment_name)
    yield made
    made.close()
    with pynotify.open(segment_name) as segment:
        assert not segment.stat().backends
