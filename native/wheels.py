"""Wheels for all platforms, from one machine: ``make wheels``.

1. The compiler is Zig's (ziglang, from the package index), which brings the C libraries of all
   targets. Python's headers are those of this machine: the stable ABI is the same on all of them.
2. Each wheel is checked: which symbols of glibc it needs, what it links to, that it is for the
   machine it says, stripped, and keeps to the stable ABI.
3. The one for this machine is installed where there is no compiler, and tried. That for another
   processor and glibc is tried in qemu, with a Python of Debian's (foreign.py). Of those for musl,
   for which there is no Python to be had, the native tests are cross-built and run, for other
   processors in qemu: which cannot take a robust mutex from a dead thread, so that some are left
   out there, and some fail.

What was not run is said at the end.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from elftools.elf.elffile import ELFFile
from foreign import Foreign, NoSuchPython

ROOT = Path(__file__).resolve().parents[1]
TOOLS = Path(sys.executable).parent
GLIBC = (2, 28)
#: Zig's own C library has another malloc() and fallocate() than musl in programs that are static.
NOT_MUSL_S = ("test_no_memory", "test_segment")
#: qemu-user has no robust mutexes, and these are about nothing else.
DEATHS = ("test_crash", "test_step", "test_power_cut")

_SECTIONS = {
    ".text": "instructions",
    ".eh_frame": "unwinding",  # debuggers and profilers need it, in a stripped module all the more
    ".eh_frame_hdr": "unwinding",
    ".rodata": "texts and constants",
    ".data.rel.ro": "tables",
    ".rela.dyn": "tables",
    ".data": "tables",
}

SMOKE = """
import os, pathlib, shutil, signal, time
assert not (shutil.which("cc") or shutil.which("gcc"))
begin = time.process_time()
import pynotify
print(f"import {1000 * (time.process_time() - begin):.0f} ms")
name = f"smoke.{os.getpid()}"
with pynotify.connect(name) as heard:
    heard.listen("orders")
    topic = heard.topic("jobs")
    topic.channel("work")
    child = os.fork()
    if child == 0:
        with pynotify.connect(name) as own:
            own.notify("orders", "hello")
            own.topic("jobs").publish(b"job")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (note,) = heard.notifies(timeout=10, stop_after=1)
    assert (note.channel, note.payload, note.pid) == ("orders", "hello", child)
    with topic.channel("work").consumer() as consumer:
        message = consumer.get(timeout=10)
        assert message.body == b"job"
        message.finish()
    heard.notify("orders", "again")
    assert [each.payload for each in heard.notifies(timeout=10, stop_after=1)] == ["again"]
pynotify.unlink(name)
assert pathlib.Path(pynotify.__file__).with_name("py.typed").exists()
"""


@dataclass
class Platform:
    """One wheel: Zig's name of the target, the tag, and what became of it."""

    target: str
    tag: str
    machine: str
    done: list[str] = field(default_factory=list)
    not_run: str = ""

    @property
    def is_musl(self) -> bool:
        return "musl" in self.target

    @property
    def is_ours(self) -> bool:
        """Whether this machine's Python can import it."""
        return self.machine == platform.machine() and not self.is_musl


def platforms() -> list[Platform]:
    return [
        Platform(f"{machine}-linux-{libc}", f"{tag}_{machine}", machine)
        for machine in ("x86_64", "aarch64")
        for libc, tag in (
            (f"gnu.{GLIBC[0]}.{GLIBC[1]}", f"manylinux_{GLIBC[0]}_{GLIBC[1]}"),
            ("musl", "musllinux_1_2"),
        )
    ]


def run(*command: object, **options: object) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, **options
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def compiler(target: str) -> str:
    return f"{sys.executable} -m ziglang cc -target {target}"


def build(sdist: Path, each: Platform, out: Path) -> Path:
    """The wheel, under its tag."""
    cc = compiler(each.target)
    environment = {
        **os.environ,
        "CC": cc,
        "LDSHARED": f"{cc} -shared",
        "LDFLAGS": "-s",
        "AR": f"{sys.executable} -m ziglang ar",
        "_PYTHON_HOST_PLATFORM": f"linux-{each.machine}",
    }
    with tempfile.TemporaryDirectory() as place:
        command = (sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check")
        options = ("--no-build-isolation", "--no-deps", "--no-cache-dir", "--wheel-dir", place)
        run(*command, *options, sdist, env=environment)
        (wheel,) = Path(place).glob("*.whl")
        run(sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", each.tag, wheel)
        (wheel,) = Path(place).glob("*.whl")
        return Path(shutil.move(wheel, out))


def check(wheel: Path, each: Platform) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".so")]
        data = archive.read(name)
    elf = ELFFile(BytesIO(data))
    machine = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}[elf.header["e_machine"]]
    assert machine == each.machine, f"{wheel.name} is for {machine}"
    assert elf.get_section_by_name(".symtab") is None, f"{wheel.name} is not stripped"
    needed = {tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")}
    if each.is_musl:
        # musl's loader is all of these itself
        assert needed <= {"libc.so"}, f"{wheel.name} needs {needed}"
    else:
        said = run(TOOLS / "auditwheel", "show", wheel)
        found = re.search(r'platform tag:\s+"manylinux_(\d+)_(\d+)_(\w+)"', said)
        assert found is not None, said
        assert (int(found[1]), int(found[2])) <= GLIBC, said
    run(TOOLS / "abi3audit", "--strict", wheel)
    each.done.append(f"checked, {len(data) >> 10} KiB: {contents(elf)}")


def contents(elf: ELFFile) -> str:
    """What takes the room in the module, in KiB."""
    found = dict.fromkeys(_SECTIONS.values(), 0)
    for section in elf.iter_sections():
        kind = _SECTIONS.get(section.name)
        if kind is not None:
            found[kind] += section.data_size
    return ", ".join(f"{kind} {size >> 10}" for kind, size in found.items())


def smoke(wheel: Path, each: Platform, bill: Path) -> None:
    """In an environment of its own, where there is no compiler; `bill`: what is in it then."""
    with tempfile.TemporaryDirectory() as place:
        venv.create(place, with_pip=True)
        (Path(place) / "empty").mkdir()
        environment = {"PATH": str(Path(place) / "empty"), "HOME": place}
        for key in ("PIP_CONFIG_FILE", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
            if key in os.environ:
                environment[key] = os.environ[key]
        python = Path(place) / "bin" / "python"
        begin = time.monotonic()
        options = ("--quiet", "--disable-pip-version-check", "--only-binary=:all:")
        run(python, "-m", "pip", "install", *options, wheel, env=environment)
        took = time.monotonic() - begin
        run(python, "-c", SMOKE, cwd=place, env=environment)
        said = run(python, "-c", SMOKE, cwd=place, env=environment).strip()
        each.done.append(f"installed without a compiler in {took:.1f} s and tried, {said}")
        run(python, "-m", "pip", "uninstall", *options[:2], "--yes", "pip", "setuptools")
        listed = ("environment", python, "--pyproject", ROOT / "pyproject.toml")
        run(TOOLS / "cyclonedx-py", *listed, "--output-reproducible", "--output-file", bill)
        each.done.append(f"bill of materials: {bill.name}")
        for other in other_pythons():
            newer = Path(place) / other.name
            run(other, "-m", "venv", newer)
            run(newer / "bin" / "python", "-m", "pip", "install", *options, wheel, env=environment)
            run(newer / "bin" / "python", "-c", SMOKE, cwd=place, env=environment)
            each.done.append(f"tried with {other.name}")


def foreign_smoke(wheel: Path, each: Platform) -> None:
    """The same in qemu; what cannot be run is not what is wrong with the wheel."""
    with tempfile.TemporaryDirectory() as place:
        try:
            foreign = Foreign(each.machine, Path(place))
        except NoSuchPython as reason:
            each.not_run = f"not tried: {reason}"
            return
        try:
            tags = [f"manylinux_2_{minor}_{each.machine}" for minor in (GLIBC[1], 27, 17)]
            foreign.install(wheel, tags)
            foreign.run("-c", SMOKE)
            said = foreign.run("-c", SMOKE).strip()
        except NoSuchPython as failed:
            raise SystemExit(
                f"{wheel.name} with CPython {foreign.version} in qemu: {failed}"
            ) from None
    each.done.append(f"tried with CPython {foreign.version} in qemu-{each.machine}, {said}")


def other_pythons() -> list[Path]:
    """Those on PATH that are newer than the one that the wheels are made with, and that run.

    What stands there under such a name may be a version manager's, for a Python that it has not.
    """
    names = (f"python3.{minor}" for minor in range(sys.version_info.minor + 1, 20))
    found = [Path(path) for name in names if (path := shutil.which(name))]
    return [path for path in found if passes([str(path), "-c", "import venv, ensurepip"])]


def native_tests(each: Platform, *, emulate: bool) -> None:
    """Cross-built against musl, without shared libraries, and run as far as that goes."""
    emulator = []
    if each.machine != platform.machine():
        if not emulate:
            each.not_run = "not run (QEMU=1: native tests, in a quarter of an hour)"
            return
        found = shutil.which(f"qemu-{each.machine}")
        if found is None:
            each.not_run = f"native tests: there is no qemu-{each.machine}"
            return
        emulator = [found]
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "cc"
        script.write_text(f'#!/bin/sh\nexec {compiler(each.target)} -Wno-error "$@" -Wno-error\n')
        script.chmod(0o755)
        archiver = Path(place) / "ar"
        archiver.write_text(f'#!/bin/sh\nexec {sys.executable} -m ziglang ar "$@"\n')
        archiver.chmod(0o755)
        tools = [f"-DCMAKE_C_COMPILER={script}", f"-DCMAKE_AR={archiver}"]
        kind = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_EXE_LINKER_FLAGS=-static"]
        target = ["-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={each.machine}"]
        tree = Path(place) / "build"
        run("cmake", "-S", ROOT, "-B", tree, *tools, *kind, *target, "-DCMAKE_RANLIB=/bin/true")
        subprocess.run(
            ["cmake", "--build", tree, "-j2", "--", "-k"], capture_output=True, check=False
        )
        left_out = (*NOT_MUSL_S, *(DEATHS if emulator else ()))
        programs = [
            path
            for path in sorted((tree / "native" / "tests").rglob("test_*"))
            if path.is_file() and os.access(path, os.X_OK) and not path.name.startswith(left_out)
        ]
        failed = [path.name for path in programs if not passes([*emulator, str(path)])]
    where = f" in qemu-{each.machine}" if emulator else ""
    each.done.append(f"{len(programs) - len(failed)} of {len(programs)} native tests{where}")
    each.not_run = f"not run: {', '.join(f'{name}*' for name in left_out)}"
    if failed:
        each.not_run += f"; failed{where}: {', '.join(failed)}"


def passes(command: list[str]) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sdist", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", metavar="TAG", help="platforms of such a tag")
    parser.add_argument("--qemu", action="store_true", help="run those of other processors")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = [each for each in platforms() if options.only in each.tag]
    wheels = []
    for each in chosen:
        print(f"{each.tag} ...", flush=True)
        wheel = build(options.sdist, each, options.out)
        check(wheel, each)
        wheels.append(wheel)
        if each.is_ours:
            smoke(wheel, each, options.out.parent / f"{options.sdist.name[:-7]}.cdx.json")
        elif each.is_musl:
            native_tests(each, emulate=options.qemu)
        elif options.qemu:
            foreign_smoke(wheel, each)
        else:
            each.not_run = "not run (QEMU=1 tries it)"
    run(TOOLS / "twine", "check", "--strict", options.sdist, *wheels)
    run(TOOLS / "check-wheel-contents", "--ignore", "W009", *wheels)  # two packages are meant
    print(f"\n{'platform':24} what was done")
    for each in chosen:
        print(f"{each.tag:24} {'; '.join(filter(None, [*each.done, each.not_run]))}")


if __name__ == "__main__":
    main()
