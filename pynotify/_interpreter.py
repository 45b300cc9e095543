"""Refuses a sub-interpreter, before anything of the core is loaded there.

Python runs signal handlers, and what was registered for fork, in the main interpreter alone: in
another one Ctrl-C would not end a wait(), and a forked child would go on with its parent's
connections.
"""

from __future__ import annotations

import importlib


def _is_main() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):  # from Python 3.13 on, before
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        return bool(interpreters.get_current() == interpreters.get_main())
    return True


if not _is_main():
    raise ImportError(
        "pynotify cannot be used in a sub-interpreter: import it in the main interpreter, or in "
        "a process of its own (mod_wsgi: WSGIApplicationGroup %{GLOBAL})",
        name="pynotify",
    )
