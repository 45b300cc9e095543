"""A cache in every worker process of a WSGI server; the worker that changes data tells all.

    gunicorn --workers 4 --chdir examples wsgi_cache:app

GET /key answers from the worker's cache, PUT /key changes the data.  Run by itself it is two
workers that forked, one of which forgets what the other has changed.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pynotify

SEGMENT = os.environ.get("SEGMENT", "wsgi-cache")
DATA = Path(os.environ.get("DATA") or f"{tempfile.gettempdir()}/wsgi-cache.{os.getuid()}")
DATA.mkdir(mode=0o700, exist_ok=True)  # the database of this example


class Cache:
    """Forgets a key when a notification on the channel "changed" names it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}
        self._forgotten = 0
        self._listener = 0  # the process whose thread listens

    def get(self, key: str) -> bytes:
        self._start()
        with self._lock:
            if key in self._values:
                return self._values[key]
            before = self._forgotten
        value = (DATA / key).read_bytes()
        with self._lock:
            if self._forgotten == before:  # else it may be older than what was announced
                self._values[key] = value
        return value

    def _start(self) -> None:
        """In the process that serves requests, never in the one that forks it."""
        with self._lock:
            if self._listener == os.getpid():
                return
            conn = pynotify.get(SEGMENT)
            conn.listen("changed")
            self._values.clear()
            self._listener = os.getpid()
        threading.Thread(target=self._forget, args=(conn,), daemon=True).start()

    def _forget(self, conn: pynotify.Connection) -> None:
        for note in conn.notifies():
            with self._lock:
                self._forgotten += 1
                self._values.pop(note.payload, None)


cache = Cache()


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    key = environ["PATH_INFO"].strip("/").replace("/", "_") or "index"
    if environ["REQUEST_METHOD"] == "PUT":
        new = DATA / f".{key}.{os.getpid()}"
        new.write_bytes(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        new.replace(DATA / key)  # first the change, then the notification
        pynotify.get(SEGMENT).notify("changed", key)
        start_response("204 No Content", [])
        return []
    try:
        body = cache.get(key)
    except FileNotFoundError:
        start_response("404 Not Found", [("Content-Length", "0")])
        return []
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


if __name__ == "__main__":
    (DATA / "greeting").write_bytes(b"hello")
    reading, writing = os.pipe()
    if os.fork() == 0:  # another worker
        os.read(reading, 1)
        (DATA / "greeting").write_bytes(b"good bye")
        pynotify.get(SEGMENT).notify("changed", "greeting")
        os._exit(0)
    print(cache.get("greeting").decode())
    os.write(writing, b"\n")
    while cache.get("greeting") == b"hello":
        time.sleep(0.01)
    print(cache.get("greeting").decode())
