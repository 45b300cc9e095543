"""pytest plugin: makes the scheme pynotify:// known to Celery's integration tests."""

from __future__ import annotations

import pynotify.contrib.kombu  # noqa: F401
