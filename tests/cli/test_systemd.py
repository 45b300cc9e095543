"""Services tell systemd when they are ready, and that they stop."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import pynotify
from programs import environment, require_module
from pynotify.cli import systemd
from receiving import PATIENCE


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short, for sockets."""
    with tempfile.TemporaryDirectory(prefix="sd-") as name:
        yield Path(name)


def told(address: str) -> socket.socket:
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.settimeout(PATIENCE)
    receiver.bind(address)
    return receiver


def test_gateway(segment_name: str, directory: Path) -> None:
    with told(f"{directory}/notify") as receiver:
        service = subprocess.Popen(
            [sys.executable, "-m", "pynotify", "gateway", segment_name, "--directory", directory],
            env={**environment(), "NOTIFY_SOCKET": f"{directory}/notify"},
            stderr=subprocess.DEVNULL,
        )
        try:
            said = receiver.recv(4096).decode()
            assert said.startswith(f"READY=1\nSTATUS=listening at {directory}/.s.PGSQL.5432")
            assert (directory / ".s.PGSQL.5432").is_socket()
            service.send_signal(signal.SIGTERM)
            assert receiver.recv(4096) == b"STOPPING=1"
            assert service.wait(PATIENCE) == 0
        finally:
            service.kill()
            service.wait()


def test_exporter(segment_name: str, directory: Path) -> None:
    require_module("prometheus_client")
    with told(f"{directory}/notify") as receiver, pynotify.open(segment_name):
        service = subprocess.Popen(
            [sys.executable, "-m", "pynotify", "exporter", "--port", "0", segment_name],
            env={**environment(), "NOTIFY_SOCKET": f"{directory}/notify"},
            stderr=subprocess.DEVNULL,
        )
        try:
            assert receiver.recv(4096).startswith(b"READY=1\nSTATUS=metrics are at 127.0.0.1:")
        finally:
            service.kill()
            service.wait()


def test_an_abstract_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"pynotify-test-{os.getpid()}"
    with told(f"\0{name}") as receiver:
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        systemd.stopping()
        assert receiver.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("address", ["", "/nowhere/at/all", "vsock:2:1"])
def test_there_is_nothing_to_tell(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    systemd.ready("all is well")
