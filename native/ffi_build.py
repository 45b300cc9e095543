"""Compile the C core into Python extensions: cffi in API mode, stable ABI.

setup.py names the two builders of this file in ``cffi_modules``. Both compile every file of
``native/SOURCES``; the declarations are the text between the two marker comments of each of the
public headers, so that C programs and Python read the same.

``pynotify._native``        the release build
``pynotify._native_crash``  the same with crash points and assertions, for the tests

The environment variable PYNOTIFY_SANITIZE (``address``, ``undefined`` or both, joined by a plus
or a comma) instruments them; Python must then be started with the sanitizer's run-time library
in LD_PRELOAD.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

import cffi

ROOT = Path(__file__).resolve().parent.parent
HEADERS = [
    ROOT / "native" / "include" / "pynotify.h",
    ROOT / "native" / "include" / "pynotify_topic.h",
    ROOT / "native" / "include" / "pynotify_gateway.h",
]

# Functions that Python calls by other ways, or not at all: they get no wrapper, which is half a
# kilobyte each.  tests/project/test_packaging.py compares this with what the package calls.
C_ONLY = (
    "pn_batch_free",
    "pn_batch_new",
    "pn_conn_channel",
    "pn_conn_claim",
    "pn_conn_close",
    "pn_conn_join",
    "pn_conn_listening",
    "pn_conn_unread",
    "pn_consumer_close",
    "pn_consumer_get",
    "pn_consumer_ref",
    "pn_engine_close",
    "pn_generation_changed_ns",
    "pn_generation_value",
    "pn_group_begin",
    "pn_group_close",
    "pn_group_fileno",
    "pn_group_next",
    "pn_group_open",
    "pn_message_deadline",
    "pn_notify",
    "pn_notify_many",
    "pn_open",
    "pn_set_wakeup_fd",
    "pn_sleep",
    "pn_topic_channel_find",
    "pn_topic_find",
    "pn_txn_abort",
    "pn_txn_commit",
)

# setuptools wants relative paths; it is always run in the project's root.
INCLUDE_DIRS = ["native/include", "native/src"]
COMPILE_ARGS = [
    "-std=gnu11",
    "-O3",
    "-fno-semantic-interposition",
    "-fno-plt",
    "-fvisibility=hidden",
    "-ffunction-sections",
    "-fdata-sections",
    "-Wall",
    "-Wextra",
    "-pthread",
]
LINK_ARGS = ["-pthread", "-Wl,--gc-sections"]


def read_sources() -> list[str]:
    return (ROOT / "native" / "SOURCES").read_text(encoding="utf-8").split()


def python_sources() -> list[str]:
    """What is called for every message, by CPython's API: a module of its own in the same file."""
    return sorted(f"native/python/{path.name}" for path in (ROOT / "native" / "python").glob("*.c"))


def gateway_sources() -> list[str]:
    """All of it but the program."""
    paths = (ROOT / "native" / "gateway").glob("*.c")
    return sorted(f"native/gateway/{path.name}" for path in paths if path.name != "main.c")


def read_declarations() -> str:
    found = []
    for header in HEADERS:
        _, begin, rest = header.read_text(encoding="utf-8").partition("/* cffi:begin */")
        declarations, end, _ = rest.partition("/* cffi:end */")
        if not (begin and end):
            raise SystemExit(f"{header}: nothing between the comments cffi:begin and cffi:end")
        found.append(declarations)
    return without("".join(found), C_ONLY)


def without(declarations: str, names: Iterable[str]) -> str:
    """The declarations less these functions."""
    text = re.sub(r"/\*.*?\*/", "", declarations, flags=re.DOTALL)
    for name in names:
        text, times = re.subn(rf"(?<=[;}}\n])[^;{{}}]*\b{name}\s*\([^;{{}}]*\);", "", text)
        if times != 1:
            raise SystemExit(f"{name} is declared {times} times")
    return text


def read_headers() -> list[str]:
    """Headers whose change makes the objects stale."""
    found = [
        *(ROOT / "native" / "src").rglob("*.h"),
        *(ROOT / "native" / "python").glob("*.h"),
        *(ROOT / "native" / "gateway").glob("*.h"),
        *HEADERS,
    ]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def sanitizer_args() -> list[str]:
    wanted = os.environ.get("PYNOTIFY_SANITIZE", "").replace("+", ",")
    names = [name for name in wanted.split(",") if name]
    if unknown := set(names) - {"address", "undefined"}:
        raise SystemExit(f"PYNOTIFY_SANITIZE: unknown {', '.join(sorted(unknown))}")
    if not names:
        return []
    return ["-fsanitize=" + ",".join(names), "-fno-omit-frame-pointer", "-g"]


def make_builder(module: str, macros: list[tuple[str, str | None]], asserts: bool) -> cffi.FFI:
    builder = cffi.FFI()
    builder.cdef(read_declarations())
    sanitizers = sanitizer_args()
    builder.set_source(
        module,
        '#include "pynotify.h"\n#include "pynotify_gateway.h"',
        sources=read_sources() + python_sources() + gateway_sources(),
        depends=read_headers(),
        include_dirs=INCLUDE_DIRS,
        # distutils puts the latter behind the former, and behind the flags of Python itself
        # PN_API: nothing links to the module, so the linker may leave out what nothing in it calls
        define_macros=[*macros, ("PN_API", ""), ("NDEBUG", None)],
        undef_macros=["NDEBUG"] if asserts else [],
        libraries=["rt"],
        extra_compile_args=COMPILE_ARGS + sanitizers,
        extra_link_args=LINK_ARGS + sanitizers,
    )
    return builder


ffibuilder = make_builder("pynotify._native", macros=[], asserts=bool(sanitizer_args()))
ffibuilder_crash = make_builder(
    "pynotify._native_crash", macros=[("PN_CRASHPOINTS", "1")], asserts=True
)
