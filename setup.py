"""Builds the wheel and nothing else; metadata is in pyproject.toml, the C side in CMakeLists.txt.

Environment: PYNOTIFY_CRASHPOINTS=1 also builds ``pynotify._native_crash`` (for the tests),
PYNOTIFY_SANITIZE instruments the extensions (see native/ffi_build.py).
"""

import copy
import gzip
import os
import sys
import tarfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

# What no message passes through, and no wait: compiled to be small.  The first are what cffi
# makes of the headers (native/ffi_build.py), of which what is called for a message is not part.
SMALL = (
    "pynotify._native",
    "native/gateway/guc.c",
    "native/gateway/terms.c",
    "native/src/api/api_channels.c",
    "native/src/api/api_dir.c",
    "native/src/api/api_stat.c",
    "native/src/files/data_dir.c",
    "native/src/files/latency_names.c",
    "native/src/files/page_file.c",
    "native/src/files/topic_log_replay.c",
    "native/src/recovery/",
    "native/src/segment/dirlock.c",
    "native/src/segment/identity.c",
    "native/src/segment/liveness_files.c",
    "native/src/segment/segment.c",
    "native/src/topic/attach.c",
    "native/src/topic/open.c",
    "native/src/topic/restore.c",
    "native/src/topic/settings.c",
)


class BuildExt(build_ext):
    """The two extensions compile the same files with other flags: each gets its own objects."""

    def build_extensions(self) -> None:
        compile_one = self.compiler._compile  # noqa: SLF001, the one place that knows the file

        def compile_small(obj, src, ext, cc_args, postargs, pp_opts):  # type: ignore[no-untyped-def]  # noqa: PLR0917
            generated = os.path.relpath(src, self.build_temp).startswith(SMALL)
            small = ["-Os"] if generated or src.startswith(SMALL) else []
            return compile_one(obj, src, ext, cc_args, [*postargs, *small], pp_opts)

        self.compiler._compile = compile_small  # noqa: SLF001
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        own = copy.copy(self)  # extensions may be built in parallel
        own.build_temp = os.path.join(self.build_temp, ext.name)
        super(BuildExt, own).build_extension(ext)


class Sdist(sdist):
    """The same bytes of the same sources: no times, owners or umask of where it was made.

    SOURCE_DATE_EPOCH is the time of everything in it, 1980 unless it is set.
    """

    def make_archive(  # type: ignore[no-untyped-def]  # noqa: PLR0917, as it is called
        self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None
    ):
        if format != "gztar":
            return super().make_archive(base_name, format, root_dir, base_dir, owner, group)
        epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))

        def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mtime = epoch
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            return member

        place = Path(root_dir or ".")
        found = f"{base_name}.tar.gz"
        with (
            open(found, "wb") as file,
            gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=epoch) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for path in (place / base_dir, *sorted((place / base_dir).rglob("*"))):
                name = str(path.relative_to(place))
                archive.add(path, arcname=name, recursive=False, filter=plain)
        return found


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

setup(cmdclass={"build_ext": BuildExt, "sdist": Sdist}, cffi_modules=cffi_modules, options=options)
