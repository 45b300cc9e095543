"""Figures over HTTP, for Prometheus: what `pynotify exporter` and `pynotify gateway` serve."""

from __future__ import annotations

import argparse
import contextlib
import importlib
from typing import TYPE_CHECKING, Any

from pynotify.cli.terminal import say

if TYPE_CHECKING:
    from collections.abc import Callable

_HIGHEST_PORT = 65535
LOCAL = "127.0.0.1"
#: Seconds that a client may send nothing of its request, or take nothing of the answer.
PATIENCE = 10.0


def port(text: str) -> int:
    """The port that an argument names; 0: any free one."""
    value = int(text)
    if not 0 <= value <= _HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"a port is at most {_HIGHEST_PORT}")
    return value


def place(text: str) -> tuple[str, int]:
    """The address and port that an argument names, [ADDRESS:]PORT."""
    address, _colon, last = text.rpartition(":")
    return address.removeprefix("[").removesuffix("]") or LOCAL, port(last)


def patient(handler: type[Any], seconds: float) -> type[Any]:
    """A handler of HTTP requests that waits no longer for its client: else half a request would
    keep its thread for good.
    """

    class Patient(handler):  # type: ignore[misc]
        timeout = seconds

        def handle(self) -> None:
            with contextlib.suppress(TimeoutError):
                super().handle()

    return Patient


def serve(command: str, address: str, at: int, collector: Callable[[Any], Any]) -> str | None:
    """Serve what `collector(pynotify.contrib.prometheus)` makes, in threads that end with the
    process.  A sentence about where; None when prometheus-client is missing, which is told.
    """
    try:
        client = importlib.import_module("prometheus_client")
    except ImportError:
        say(
            f"pynotify {command}: the package prometheus-client is not installed\n"
            'Install it with the extra: pip install "pynotify-ipc[prometheus]".'
        )
        return None
    # Of its own, so that nothing of this process is among the figures.
    registry = client.CollectorRegistry(auto_describe=False)
    registry.register(collector(importlib.import_module("pynotify.contrib.prometheus")))
    server, _thread = client.start_http_server(at, addr=address, registry=registry)
    server.RequestHandlerClass = patient(server.RequestHandlerClass, PATIENCE)
    bound, number = server.server_address[:2]
    host = f"[{bound}]" if ":" in bound else bound
    return f"metrics are at {host}:{number}/metrics"
