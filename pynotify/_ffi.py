"""The compiled core.  Every call through `lib` releases the GIL.

Developer builds hold a second copy of the core with crash points compiled in; a process
chooses it before the import, because a segment must not be shared with half-armed code.
"""

from __future__ import annotations

import os

if os.environ.get("PYNOTIFY_CRASHPOINTS") == "1":
    from pynotify._native_crash import ffi, lib
else:
    from pynotify._native import ffi, lib

# What waits in the core comes back in between, for the signal handlers of Python: see _base.
lib.pn_set_interruptible(1)

__all__ = ["ffi", "lib"]
