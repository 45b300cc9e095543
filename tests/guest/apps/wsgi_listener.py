"""A WSGI application with a thread in each worker that hears notifications.

The import connects, as an application does that knows nothing of preloading; whether that was
the process which serves is seen in `attend`, which gunicorn calls in each worker.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

from journal import note

import pynotify

SEGMENT = os.environ["SEGMENT"]
engine_at_import = pynotify.open(SEGMENT)
conn_at_import = pynotify.get(SEGMENT)
if os.environ.get("MASTER") == "listens":
    conn_at_import.listen("c")
note("imported")


def attend() -> None:
    """Listen, in the process that serves requests."""
    conn = pynotify.get(SEGMENT)
    conn.listen("c")
    if conn is not conn_at_import:
        for use in (lambda: conn_at_import.notify("c"), lambda: engine_at_import.connect().close()):
            try:
                use()
            except pynotify.InterfaceError as error:
                note("refused", type(error).__name__, str(error).partition("\n")[0])
    threading.Thread(target=_hear, args=(conn,), daemon=True).start()
    note("listening", conn.pid)


def _hear(conn: pynotify.Connection) -> None:
    for message in conn.notifies():
        note("heard", message.payload)


def app(_environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
