"""Fixtures: a PostgreSQL."""

from __future__ import annotations

from pubsub.server import own_postgres, postgres

__all__ = ["own_postgres", "postgres"]
