"""Refuses a free-threaded build and sub-interpreters, before anything of the core is loaded.

A free-threaded build has no stable ABI before 3.15, which the extension is compiled for; and the
GIL is what orders its calls of one connection.

Python runs signal handlers, and what was registered for fork, in the main interpreter alone: in
another one Ctrl-C would not end a wait(), and a forked child would go on with its parent's
connections.
"""

from __future__ import annotations

import sys


def _is_main() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):  # from Python 3.13 on, before
        try:
            interpreters = __import__(name)
        except ImportError:
            continue
        return bool(interpreters.get_current() == interpreters.get_main())
    return True


if "t" in sys.abiflags:
    raise ImportError(
        "pynotify cannot be used with a free-threaded build of Python (its name ends in t): use "
        "the standard build, which has the GIL",
        name="pynotify",
    )

if not _is_main():
    raise ImportError(
        "pynotify cannot be used in a sub-interpreter: import it in the main interpreter, or in "
        "a process of its own (mod_wsgi: WSGIApplicationGroup %{GLOBAL})",
        name="pynotify",
    )
