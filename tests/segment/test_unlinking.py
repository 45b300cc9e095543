"""unlink() and connect() at once: one step, or another try."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import pynotify
from pynotify import _segments
from pynotify._ffi import lib
from pynotify._handle import Handle


def test_refused_when_a_process_connects_in_between(
    segment_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After unlink() has looked for processes, and before it removes anything."""
    look = _segments.live_pids
    connected: list[pynotify.Connection] = []

    def then_connect(name: str) -> list[int]:
        pids = look(name)
        if not connected:
            connected.append(pynotify.connect(name))
        return pids

    with pynotify.open(segment_name) as engine:
        monkeypatch.setattr(_segments, "live_pids", then_connect)
        with pytest.raises(pynotify.OperationalError, match=str(os.getpid())):
            pynotify.unlink(segment_name)
        with connected[0] as conn:
            conn.notify("c", "x")
        assert not engine.closed
        pynotify.unlink(segment_name)


def test_connect_comes_again_when_it_was_unlinked_in_between(
    segment_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = Handle.claim
    unlinked: list[str] = []

    def claim_later(engine: Any, name: str, *arguments: Any) -> Handle:
        if not unlinked:
            unlinked.append(name)
            pynotify.unlink(segment_name)
        return claim(engine, name, *arguments)

    monkeypatch.setattr(Handle, "claim", claim_later)
    with pynotify.connect(segment_name) as conn:
        conn.notify("c", "x")

    async def connect() -> None:
        unlinked.clear()
        async with await pynotify.AsyncConnection.connect(segment_name) as conn:
            await conn.notify("c", "x")

    asyncio.run(connect())
    assert len(unlinked) == 1
    unlinked.clear()
    with pynotify.open(segment_name) as engine, pytest.raises(pynotify.SegmentUnlinked):
        engine.connect()  # of that very segment


def test_a_process_is_killed_while_it_unlinks(segment_name: str) -> None:
    """It had marked the segment, and had not removed its name yet."""
    with pynotify.open(segment_name) as engine:
        assert lib.pn_retire(engine._mapping.usable()) == 0
        with pytest.raises(pynotify.SegmentUnlinked):
            engine.connect()
        with pynotify.connect(segment_name) as conn, pynotify.connect(segment_name) as other:
            conn.listen("c")
            other.notify("c", "x")
            assert [n.payload for n in conn.poll()] == ["x"]


def test_lock_files_of_a_new_segment_are_no_orphans(
    segment_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """unlink() has found no segment, and one is made before it looks for what is left."""
    opened = _segments._open_file
    begun: list[str] = []
    made: list[pynotify.Connection] = []

    def open_file(name: str) -> Any:
        found = opened(name)
        if found is None and not begun:
            begun.append(name)
            made.append(pynotify.connect(name))
        return found

    monkeypatch.setattr(_segments, "_open_file", open_file)
    monkeypatch.setattr(_segments, "live_pids", lambda name: [])
    pynotify.unlink(segment_name, missing_ok=True)
    monkeypatch.undo()
    assert made
    with made[0], pynotify.connect(segment_name) as other:
        other.notify("c", "x")


def test_refused_for_a_process_that_lost_its_locks(segment_name: str) -> None:
    """What a backup of /dev/shm does to it: a process that closes a file loses all locks on it."""
    told, telling = os.pipe()
    waiting, end = os.pipe()
    with pynotify.open(segment_name):
        pid = os.fork()
        if pid == 0:
            os.close(end)
            pynotify.get(segment_name).notify("c", "x")
            for path in Path("/dev/shm").glob(f"pynotify-lock.{os.geteuid()}.{segment_name}.*"):
                path.open("r+b").close()
            os.write(telling, b"x")
            os.read(waiting, 1)
            os._exit(0)
        try:
            os.close(waiting)
            os.read(told, 1)
            assert _segments.live_pids(segment_name) == []
            with pytest.raises(pynotify.OperationalError, match=str(pid)):
                pynotify.unlink(segment_name)
            with pytest.raises(pynotify.LayoutMismatch, match=str(pid)):
                pynotify.open(segment_name, queue_pages=2048)
        finally:
            os.close(end)
            os.waitpid(pid, 0)
            os.close(told)
            os.close(telling)
    pynotify.unlink(segment_name)
