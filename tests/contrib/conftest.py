"""The fixtures of these tests."""

from __future__ import annotations

from pubsub.server import postgres

__all__ = ["postgres"]
