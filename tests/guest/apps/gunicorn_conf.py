"""gunicorn's configuration: listening begins in the worker, once it has its own signal handlers.

pynotify is imported here, in the master: with --user the worker may not be allowed to read the
place where it is installed.
"""

from __future__ import annotations

import sys
from typing import Any

import journal  # noqa: F401

import pynotify  # noqa: F401


def post_worker_init(_worker: Any) -> None:
    application = sys.modules.get("wsgi_listener")  # the other one listens in its lifespan
    if application is not None:
        application.attend()
