"""What `pynotify exporter` and `pynotify gateway` do with clients that send half a request."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import pytest

from pynotify.cli import metrics
from receiving import PATIENCE


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """As that of prometheus-client; but a test waits for its threads."""

    def handle_error(self, request: object, client_address: object) -> None:
        self.failed = True

    failed = False


@contextmanager
def _serving(handler: type[WSGIRequestHandler]) -> Iterator[_Server]:
    with _Server((metrics.LOCAL, 0), handler) as server:
        server.set_app(lambda _environ, start: (start("200 OK", []) and None) or [b"figures"])
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize("sent", [b"", b"GET /met", b"GET /metrics HTTP/1.1\r\nHost: "])
def test_half_a_request_is_not_waited_for(sent: bytes) -> None:
    """The client is hung up on; nothing is printed, and whole requests are served."""
    with _serving(metrics.patient(_Silent, 0.05)) as server:
        with socket.create_connection(server.server_address, timeout=PATIENCE) as client:
            client.sendall(sent)
            assert client.recv(1) == b""
        with socket.create_connection(server.server_address, timeout=PATIENCE) as client:
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert client.makefile("rb").read().endswith(b"figures")
        assert not server.failed


def test_the_exporter_is_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("prometheus_client")
    started: list[object] = []
    start = client.start_http_server

    def note(*args: object, **options: object) -> object:
        started.append(start(*args, **options))
        return started[0]

    monkeypatch.setattr(client, "start_http_server", note)

    class Nothing:
        def collect(self) -> Iterator[object]:
            return iter(())

    assert metrics.serve("exporter", metrics.LOCAL, 0, lambda _: Nothing()) is not None
    server, thread = started[0]  # type: ignore[misc]
    try:
        assert server.RequestHandlerClass.timeout == metrics.PATIENCE
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
