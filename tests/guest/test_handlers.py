"""Other users of SIGUSR1, in a process that only runs an event loop: nothing there calls wait().

A replaced handler of ours stays so until the slow timer of the descriptor looks; the
senders see meanwhile that the process does not catch the signal.
"""

from __future__ import annotations

import pytest

from looping import (
    SIGNAL,
    calls,
    calls_in_loop,
    check_not_signalled,
    check_woken,
    handle,
    handle_in_loop,
    hear_and_reinstall,
    hear_in_a_thread,
    remove_from_loop,
    save_and_restore,
    start_loop,
    start_loop_that_handles,
)
from receiving import wait_until
from serving import Notifier
from sessions import Worker


@pytest.mark.full
def test_saved_and_restored_around_us(engine_name: str, worker: Worker, notifier: Notifier) -> None:
    """`signal.signal` gave the stale default, and got it back: a wake-up would terminate."""
    worker.call(start_loop, engine_name)
    for time in (1, 2):
        assert worker.call(save_and_restore)
        check_not_signalled(worker, notifier, reinstalls=time)
    check_woken(worker, notifier, "1", "2", "3")
    assert worker.call(calls) == []


def test_handler_in_python_after_ours(engine_name: str, worker: Worker, notifier: Notifier) -> None:
    """The slow timer puts us in front of it; it gets what is not ours."""
    worker.call(start_loop, engine_name)
    worker.call(handle)
    worker.call(hear_and_reinstall, 0, 1)
    check_woken(worker, notifier, "1", "2", "3")
    assert worker.call(calls) == []
    worker.signal(SIGNAL)
    wait_until(lambda: worker.call(calls) == ["host"], "the host's handler ran")
    check_woken(worker, notifier, "4")
    assert worker.call(calls) == ["host"]


@pytest.mark.parametrize("earlier", [True, False])
def test_handler_of_the_loop(
    engine_name: str, worker: Worker, notifier: Notifier, earlier: bool
) -> None:
    """`loop.add_signal_handler`, before ours and after it."""
    worker.call(start_loop_that_handles if earlier else start_loop, engine_name)
    if not earlier:
        worker.call(handle_in_loop)
        worker.call(hear_and_reinstall, 0, 1)
    worker.signal(SIGNAL)
    assert worker.call(calls_in_loop, 1) == ["loop"]
    check_woken(worker, notifier, "1", "2", "3")
    worker.signal(SIGNAL)
    assert worker.call(calls_in_loop, 2) == ["loop", "loop"]
    check_woken(worker, notifier, "4")
    assert worker.call(calls) == ["loop", "loop"]


@pytest.mark.full
def test_loop_that_removes_its_handler(
    engine_name: str, worker: Worker, notifier: Notifier
) -> None:
    """`loop.remove_signal_handler` sets the default, whatever was there before."""
    worker.call(start_loop, engine_name)
    worker.call(handle_in_loop)
    worker.call(hear_and_reinstall, 0, 1)
    worker.call(remove_from_loop)
    check_not_signalled(worker, notifier, reinstalls=2)
    check_woken(worker, notifier, "1", "2", "3")
    assert worker.call(calls) == []


def test_loop_in_a_thread(engine_name: str, worker: Worker, notifier: Notifier) -> None:
    """Where `loop.add_signal_handler` is refused, a descriptor is not."""
    worker.start(hear_in_a_thread, engine_name, 3)
    wait_until(lambda: worker.pid in notifier.state().asleep, "it listens")
    notifier.notify("1", "2", "3")
    assert worker.result() == ["1", "2", "3"]
