"""Manners of a guest in another program's process, beside the core's handler."""

from __future__ import annotations

import sys

from pynotify._ffi import lib
from pynotify._log import logger

_STDERR = 2


class _Prepared:
    """What was done in this process, or in one that it was forked from."""

    printer = False
    warned = False


def prepare(signo: int) -> None:
    """Prepare for a connection that is woken by `signo` (0: SIGUSR1, -1: none)."""
    if not _Prepared.printer:
        _Prepared.printer = True
        _adopt_stack_printer()
    if signo == 0 and not _Prepared.warned and "billiard" in sys.modules and _in_billiard_child():
        _Prepared.warned = True
        logger.warning(
            "SIGUSR1 is Celery's soft time limit in this process\n"
            "Connect with wakeup=signal.SIGRTMIN + n, or a soft time limit may be lost."
        )


def _adopt_stack_printer() -> None:
    """Lend faulthandler's printer to our handler, for Engine.log_stack().

    It is the one thing in Python that may print a stack inside of a signal handler.  It prints
    for signals that were registered with it only; so one is, and then the kernel is given back
    what it had for that signal.  Without one (valgrind keeps SIGRTMAX for itself) the process
    prints no stack.
    """
    import faulthandler  # noqa: PLC0415, as signal
    import signal  # noqa: PLC0415, a process that only sends does without

    if lib.pn_keep_disposition(signal.SIGRTMAX) != 0:
        return
    try:
        faulthandler.register(signal.SIGRTMAX, file=_STDERR, all_threads=True, chain=False)
    except OSError as error:
        logger.debug("no Python stack of this process can be printed: %s", error)
        return
    lib.pn_adopt_stack_printer(signal.SIGRTMAX)


def _in_billiard_child() -> bool:
    process = getattr(sys.modules["billiard"], "current_process", None)
    return process is not None and getattr(process(), "_name", "MainProcess") != "MainProcess"
