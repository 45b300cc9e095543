"""faulthandler.register(SIGUSR1): a handler in C, which Python does not see, and which chains.

Without `chain` it is tried in tests/guest/test_signals.py::test_handler_written_in_c.
"""

from __future__ import annotations

import faulthandler
import os
from pathlib import Path

import pytest

from looping import (
    SIGNAL,
    calls,
    check_woken,
    handle,
    hear,
    hear_and_reinstall,
    listen_again,
    start_loop,
)
from receiving import wait_until
from serving import Notifier
from sessions import Worker


def register(path: str) -> None:
    """`chain`: after the dump, the handler from before gets it as well."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    faulthandler.register(SIGNAL, fd, all_threads=False, chain=True)


def unregister() -> None:
    assert faulthandler.unregister(SIGNAL)


class Dump:
    """The file with the stacks."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def count(self) -> int:
        return self.path.read_text().count("most recent call first")


@pytest.fixture(params=[False, True], ids=["default", "handler"])
def host(request: pytest.FixtureRequest, worker: Worker) -> bool:
    """Whether the program has a handler of its own; it is there first."""
    if request.param:
        worker.call(handle)
    return bool(request.param)


@pytest.fixture
def dump(tmp_path: Path) -> Dump:
    return Dump(tmp_path / "stacks")


def check_foreign_signals(worker: Worker, host: bool) -> None:
    """They do what the host had: call a handler, or by default terminate."""
    worker.signal(SIGNAL)
    if host:
        wait_until(lambda: worker.call(calls) == ["host"], "the host's handler ran")
    else:
        assert worker.join() == -SIGNAL


def check_dumped_foreign_signals(worker: Worker, dump: Dump, host: bool) -> None:
    before = dump.count()
    check_foreign_signals(worker, host)
    assert dump.count() > before


def test_registered_before_us(
    engine_name: str, worker: Worker, notifier: Notifier, dump: Dump, host: bool
) -> None:
    """It gets what is not ours, and passes that on to the handler before it."""
    worker.call(register, str(dump.path))
    worker.call(start_loop, engine_name)
    check_woken(worker, notifier, "1", "2", "3")
    assert dump.count() == 0
    check_dumped_foreign_signals(worker, dump, host)
    if host:
        check_woken(worker, notifier, "4", "5")
        assert worker.call(calls) == ["host"]
        assert dump.count() == 1


def test_registered_after_us(
    engine_name: str, worker: Worker, notifier: Notifier, dump: Dump, host: bool
) -> None:
    """It is in front of us, raises the signal again for us, and none of that is the host's."""
    worker.call(start_loop, engine_name)
    worker.call(register, str(dump.path))
    for message in ("1", "2", "3"):
        notifier.notify(message)
        assert worker.call(hear, 1) == [message]
    assert worker.call(calls) == []
    assert dump.count() == 3, "a dump for each wake-up, as docs/signals.md says"
    worker.call(hear_and_reinstall, 0, 1)
    check_woken(worker, notifier, "4", "5")
    assert dump.count() == 3
    check_dumped_foreign_signals(worker, dump, host)


def test_unregistered(
    engine_name: str, worker: Worker, notifier: Notifier, dump: Dump, host: bool
) -> None:
    """It puts back what it found: ours, and behind that what was there before us."""
    worker.call(start_loop, engine_name)
    worker.call(register, str(dump.path))
    worker.call(listen_again)
    check_woken(worker, notifier, "1", "2")
    worker.call(unregister)
    check_woken(worker, notifier, "3", "4")
    worker.call(listen_again)
    check_woken(worker, notifier, "5", "6")
    assert worker.call(calls) == []
    check_foreign_signals(worker, host)
    if host:
        check_woken(worker, notifier, "7", "8")
        assert worker.call(calls) == ["host"]
    assert dump.count() == 0
