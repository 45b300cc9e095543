"""Ctrl-C at every place of opening and connecting: no mapping, slot or descriptor is left."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import pynotify
from interrupting import WHOLE, At, at_places

Closing = pynotify.Engine | pynotify.Connection


def _open(name: str) -> Closing:
    return pynotify.open(name)


def _open_with_options(name: str) -> Closing:
    return pynotify.open(name, queue_pages=64)


def _connect(name: str) -> Closing:
    return pynotify.connect(name)


def _open_and_connect(name: str) -> Closing:
    with pynotify.open(name) as engine:
        return engine.connect()


def _create(name: str) -> Closing:
    pynotify.unlink(name, missing_ok=True)
    return pynotify.open(name)


def _replace(name: str) -> Closing:
    pynotify.open(name, create=False).close()
    pynotify.unlink(name, missing_ok=True)
    pynotify.open(name, queue_pages=128).close()
    return pynotify.open(name, queue_pages=64)


WAYS = [_open, _open_with_options, _connect, _open_and_connect, _create, _replace]


def _maps(name: str) -> list[str]:
    end = f"/pynotify.{os.geteuid()}.{name}"
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if line.removesuffix(" (deleted)").endswith(end)]


def _descriptors(name: str) -> list[str]:
    """What is open under /dev/shm with the name in it."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # that of the listing itself
            continue
        if name in target:
            found.append(target)
    return found


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_left(segment_name: str, way: Callable[[str], Closing], whole: bool) -> None:
    pynotify.open(segment_name, queue_pages=64).close()

    def attempt(at: At) -> None:
        made = at.attempt(lambda: way(segment_name))
        if made is not None:
            made.close()
        del made
        gc.collect()
        assert _maps(segment_name) == []
        assert _descriptors(segment_name) == []
        with pynotify.open(segment_name) as engine:
            assert engine.stat().backends == []
            assert engine.check().ok

    at_places(attempt, whole=whole)


@pytest.mark.parametrize("whole", WHOLE)
def test_nothing_is_left_by_those_that_look(
    segment_name: str, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """They map what has the name, too; here that of the test alone, since others come and go."""
    monkeypatch.setattr("pynotify._segments._is_name", segment_name.__eq__)
    pynotify.open(segment_name, queue_pages=64).close()

    def attempt(at: At) -> None:
        at.attempt(pynotify.segments)
        gc.collect()
        assert _maps(segment_name) == []
        assert _descriptors(segment_name) == []

    at_places(attempt, whole=whole)
