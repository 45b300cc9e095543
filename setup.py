"""Builds the wheel and nothing else; metadata is in pyproject.toml, the C side in CMakeLists.txt.

Environment: PYNOTIFY_CRASHPOINTS=1 also builds ``pynotify._native_crash`` (for the tests),
PYNOTIFY_SANITIZE instruments the extensions (see native/ffi_build.py).
"""

import copy
import os
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class BuildExt(build_ext):
    """The two extensions compile the same files with other flags: each gets its own objects."""

    def build_extension(self, ext: Extension) -> None:
        own = copy.copy(self)  # extensions may be built in parallel
        own.build_temp = os.path.join(self.build_temp, ext.name)
        super(BuildExt, own).build_extension(ext)


options: dict[str, dict[str, str]] = {"build_ext": {"parallel": "2"}}
cffi_modules = ["native/ffi_build.py:ffibuilder"]
if os.environ.get("PYNOTIFY_CRASHPOINTS") == "1":
    cffi_modules.append("native/ffi_build.py:ffibuilder_crash")

if "t" in sys.abiflags:
    raise SystemExit(
        "pynotify cannot be built for a free-threaded Python (its name ends in t), which has no "
        "stable ABI: use the standard build, which has the GIL"
    )
# cffi makes the extension itself abi3; the wheel's tag is ours to set.
options["bdist_wheel"] = {"py_limited_api": "cp311"}

setup(cmdclass={"build_ext": BuildExt}, cffi_modules=cffi_modules, options=options)
