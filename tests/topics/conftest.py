"""Fixtures of the tests of topics."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import pynotify


@pytest.fixture
def topic(conn: pynotify.Connection) -> pynotify.Topic:
    return conn.topic("orders")


@pytest.fixture
def channel(topic: pynotify.Topic) -> pynotify.Channel:
    return topic.channel("billing")
