"""What the rest of a process notices of a listener in it: no thread, no mask, no interruption."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from pathlib import Path

from listening import hear, listen
from receiving import wait_until
from serving import Notifier
from sessions import Worker


def masks_and_threads() -> tuple[set[str], int]:
    """The blocked signals of every thread here and of a program started here; the threads."""
    tasks = list(Path("/proc/self/task").iterdir())
    texts = [(task / "status").read_text() for task in tasks]
    texts.append(subprocess.check_output(["cat", "/proc/self/status"], text=True))
    lines = [line for text in texts for line in text.splitlines() if line.startswith("SigBlk")]
    return set(lines), len(tasks)


_pipe: list[int] = []
_heard: list[str] = []


def read_in_c(count: int) -> tuple[int, int]:
    """Block in a read() that knows no EINTR, while a thread hears so many; its result, errno."""
    reading, writing = os.pipe()

    def body() -> None:
        for _ in range(count):
            _heard.extend(hear(1))
        os.write(writing, b"x")

    thread = threading.Thread(target=body)
    thread.start()
    libc = ctypes.CDLL(None, use_errno=True)
    ctypes.set_errno(0)
    result = libc.read(reading, ctypes.create_string_buffer(1), 1)
    error = ctypes.get_errno()
    thread.join()
    os.close(reading)
    os.close(writing)
    return result, error


def heard() -> list[str]:
    return list(_heard)


def test_no_thread_and_nothing_blocked(
    engine_name: str, worker: Worker, notifier: Notifier
) -> None:
    """A blocked signal would be inherited by every program that the host starts."""
    before = worker.call(masks_and_threads)
    worker.call(listen, engine_name)
    for message in ("1", "2", "3"):
        worker.start(hear, 1)
        notifier.notify(message)
        assert worker.result() == [message]
    assert worker.call(masks_and_threads) == before


def test_c_code_is_not_interrupted(engine_name: str, worker: Worker, notifier: Notifier) -> None:
    """The main thread is in a system call without end, takes the signals, and stays there."""
    worker.call(listen, engine_name)
    messages = [str(number) for number in range(20)]
    worker.start(read_in_c, len(messages))
    for message in messages:
        wait_until(notifier.all_asleep, "the thread sleeps")
        before = notifier.state().signals_sent
        notifier.notify(message)
        assert notifier.state().signals_sent > before
    assert worker.result() == (1, 0)
    assert worker.call(heard) == messages
