"""System calls that are refused, as a container's profile or a service manager refuses them.

Run as a program in front of another: python seccomp.py CALL... -- PROGRAM ARGUMENT...
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

#: By the machine's name: (AUDIT_ARCH, numbers of the calls that are tried here).
_MACHINES = {
    "x86_64": (
        0xC000003E,
        {
            "eventfd2": 290,
            "fdatasync": 75,
            "fallocate": 285,
            "get_robust_list": 274,
            "set_robust_list": 273,
            "timerfd_create": 283,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "eventfd2": 19,
            "fdatasync": 83,
            "fallocate": 47,
            "get_robust_list": 100,
            "set_robust_list": 99,
            "timerfd_create": 85,
        },
    ),
}
#: The same everywhere.
_CALLS = {"pidfd_send_signal": 424, "pidfd_open": 434, "epoll_pwait2": 441}
_NO_NEW_PRIVS, _SECCOMP, _FILTER = 38, 22, 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06


def supported() -> bool:
    """Whether the numbers of this machine's calls are known."""
    return platform.machine() in _MACHINES


def refuse(*calls: str) -> None:
    """Have these fail with EPERM from now on, in this process and its children."""
    architecture, numbers = _MACHINES[platform.machine()]
    numbers = {**_CALLS, **numbers}

    def word(code: int, constant: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("HBBI", code, yes, no, constant)

    program = word(_LOAD, 4) + word(_EQUAL, architecture, 1) + word(_RETURN, _ALLOW)
    program += word(_LOAD, 0)
    for call in calls:
        program += word(_EQUAL, numbers[call], 0, 1) + word(_RETURN, _ERRNO | errno.EPERM)
    program += word(_RETURN, _ALLOW)
    text = ctypes.create_string_buffer(program)
    head = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(text))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_SECCOMP, _FILTER, head, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    end = sys.argv.index("--")
    refuse(*sys.argv[1:end])
    os.execvp(sys.argv[end + 1], sys.argv[end + 1 :])
