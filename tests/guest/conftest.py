"""A good guest in any process: the rules of sharing one, and where each of them is tried.

Every test starts real processes, and a real notify() of another one sends the signals.  After
each of them all processes live that should, the host's own use of SIGUSR1 works, and every
notification has come exactly once.

1. Nothing happens at import; the handler comes with the first listen, in the process that does it.
   tests/guest/test_signals.py::test_nothing_is_installed_before_it_is_needed
   tests/guest/test_gunicorn.py::test_get_in_a_preloading_server
   tests/guest/test_uvicorn.py::test_worker_that_does_not_listen_lives
2. Every signal that is not ours goes on to the handler before, and we do our work at each of them.
   tests/guest/test_signals.py::test_earlier_python_handler_gets_foreign_signals_only
   tests/guest/test_signals.py::test_handler_written_in_c
   tests/guest/test_signals.py::test_storm_of_foreign_signals
   tests/guest/test_faulthandler.py::test_registered_before_us
   tests/guest/test_faulthandler.py::test_registered_after_us
   tests/guest/test_faulthandler.py::test_unregistered
   tests/guest/test_handlers.py::test_handler_of_the_loop
   tests/guest/test_debugger.py::test_debugger_that_passes_signals_on
3. Only a sleeper is signalled, once, and only the process that took the slot.
   tests/guest/test_signals.py::test_wake_up_is_a_real_signal
   tests/guest/test_signals.py::test_stranger_with_the_pid_of_a_dead_listener_lives
   tests/core/test_delivery.py::test_one_wake_up_is_outstanding_per_listener
   tests/guest/test_debugger.py::test_stopped_listener_delays_no_other
4. What a listener starts, or becomes by exec, is never signalled.
   tests/guest/test_signals.py::test_program_that_was_execed_is_not_signalled
   tests/guest/test_start_methods.py::test_child_that_does_not_listen_lives
   tests/guest/test_start_methods.py::test_programs_started_while_messages_come
   tests/guest/test_start_methods.py::test_child_that_listens_is_woken_too
5. Code that replaces our handler, or resets it, gets it back in front of its own.
   tests/guest/test_signals.py::test_reinstalled_after_signal_signal_replaced_it
   tests/guest/test_signals.py::test_reinstallation_is_logged_once
   tests/guest/test_signals.py::test_process_without_our_handler_is_not_signalled
   tests/guest/test_handlers.py::test_saved_and_restored_around_us
   tests/guest/test_handlers.py::test_handler_in_python_after_ours
   tests/guest/test_handlers.py::test_loop_that_removes_its_handler
   tests/guest/test_gunicorn.py::test_workers
6. After the last close a late wake-up does not kill.
   tests/guest/test_signals.py::test_foreign_signal_after_the_last_close_is_ignored
   tests/guest/test_signals.py::test_earlier_handler_is_back_after_the_last_close
   tests/guest/test_uvicorn.py::test_worker_that_does_not_listen_lives
7. Another signal may be chosen, or none.
   tests/guest/test_signals.py::test_real_time_signal
   tests/guest/test_signals.py::test_polling_needs_no_signal
   tests/guest/test_celery.py::test_soft_time_limit
8. No signal is blocked, and no thread started.
   tests/guest/test_hosts.py::test_no_thread_and_nothing_blocked
9. Signals are rare, and interrupt no system call that can be restarted.
   tests/core/test_delivery.py::test_one_wake_up_is_outstanding_per_listener
   tests/guest/test_hosts.py::test_c_code_is_not_interrupted
10. Whatever host it is: besides the above
   tests/guest/test_signals.py::test_wait_in_a_thread_only
   tests/connection/test_fork.py::test_start_methods
   tests/guest/test_handlers.py::test_loop_in_a_thread
   tests/guest/test_gunicorn.py::test_workers_of_another_user
   tests/guest/test_gunicorn.py::test_master_that_listens_lives
   tests/guest/test_gunicorn.py::test_example_of_a_cache
   tests/guest/test_uvicorn.py::test_two_workers
   tests/guest/test_debugger.py::test_debugger_that_keeps_signals
   tests/guest/test_subinterpreter.py::test_sub_interpreter_is_refused
   tests/guest/test_subinterpreter.py::test_a_free_threaded_build_is_refused
   tests/guest/test_closed_descriptors.py::test_it_receives_as_before
   tests/guest/test_closed_descriptors.py::test_a_pidfd_of_the_program_is_not_signalled
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving import Notifier, Server
from sessions import EngineFactory, NewWorker


@pytest.fixture
def directory() -> Iterator[Path]:
    """As `tmp_path`, but other users may enter it, and a socket's path in it is short."""
    path = Path(tempfile.mkdtemp(prefix="pynotify-guest-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def serve(directory: Path, make_engine: EngineFactory) -> Iterator[Callable[..., Server]]:
    """Start a server; it is stopped before the segments are looked at."""
    servers: list[Server] = []

    def start(*command: str | Path, **environment: Any) -> Server:
        servers.append(Server(directory, *command, **environment))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def notifier(new_worker: NewWorker, engine_name: str) -> Notifier:
    """Another process, that notifies on the test's segment."""
    return Notifier(new_worker(), engine_name)
