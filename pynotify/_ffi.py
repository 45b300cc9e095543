"""The compiled core.  Every call through `lib` releases the GIL; see `_hot` for those that do not.

Developer builds hold a second copy of the core with crash points compiled in; a process
chooses it before the import, because a segment must not be shared with half-armed code.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

if os.environ.get("PYNOTIFY_CRASHPOINTS") == "1":
    from pynotify._native_crash import __file__ as native_file
    from pynotify._native_crash import ffi, lib
else:
    from pynotify._native import __file__ as native_file
    from pynotify._native import ffi, lib

# What waits in the core comes back in between, for the signal handlers of Python: see `_registry`.
lib.pn_set_interruptible(1)

_EINTR = -errno.EINTR


def again(call: Callable[[], int]) -> int:
    """Make a call of the core until it does not come back in between; its result.

    Python's signal handlers run between two of them.  When one raises, the call is not made again,
    and has done nothing.
    """
    try:
        while (result := call()) == _EINTR:
            pass
    except BaseException:
        lib.pn_forget_wait()
        raise
    return result


__all__ = ["again", "ffi", "lib", "native_file"]
