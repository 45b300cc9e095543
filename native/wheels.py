"""Wheels for all platforms, from one machine: ``make wheels``.

1. The compiler is Zig's (ziglang, from the package index), which brings the C libraries of all
   targets. Python's headers are those of this machine: the stable ABI is the same on all of them.
2. Each wheel is checked: which symbols of glibc it needs, what it links to, that it is for the
   machine it says, stripped, and keeps to the stable ABI.
3. Each is tried (``SMOKE``) where there is no compiler. The one for this machine by the Python that
   made it and by newer ones; those for another processor in qemu with Debian's Python; those for
   musl with a Python that is compiled for it from Debian's source (foreign.py).
4. For musl the native tests are cross-built and run, too, for other processors in qemu.  That has
   no robust mutexes, no seccomp filters, and signal handlers of its own in /proc: a test that needs
   one of these says so (RUN_WHERE of native/tests/support/harness.h), and is in the table.

A table at the end says what was run on which platform, and what was not.
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
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import foreign
from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).resolve().parents[1]
TOOLS = Path(sys.executable).parent
GLIBC = (2, 28)
#: Without -O the linker keeps what nothing calls; and Zig's run-time library has a memcpy() and
#: memcmp() of its own, where the C library's know the processor.
LINKING = "-O2 -rtlib=none"
#: What the module shows: its two inits.
EXPORTED = {"PyInit__native", "PyInit__hot"}
#: Zig's own C library has another malloc() and fallocate() than musl in programs that are static.
NOT_MUSL_S = ("test_no_memory", "test_segment")
#: qemu-user has no robust mutexes, and these are about nothing else.
DEATHS = ("test_crash", "test_step", "test_power_cut")
#: Seconds for one of these programs; qemu takes ten times as long as the processor.
TEST_SECONDS = 900
#: Their exit status where they say that they cannot run.
SKIPPED = 77

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
            with own.transaction():
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
class Row:
    """Of the table: what ran, what was run, and what was not."""

    what: str
    run: str = ""
    not_run: str = ""


@dataclass
class Platform:
    """One wheel: Zig's name of the target, the tag, and what became of it."""

    target: str
    tag: str
    machine: str
    rows: list[Row] = field(default_factory=list)

    def ran(self, what: str, run: str, not_run: str = "") -> None:
        self.rows.append(Row(what, run, not_run))
        print(f"  {what}: {'; not run: '.join(filter(None, (run, not_run)))}", flush=True)

    def did_not_run(self, what: str, why: str) -> None:
        self.ran(what, "", why)

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


def archiver() -> str:
    return f"{sys.executable} -m ziglang ar"


def build(sdist: Path, each: Platform, out: Path) -> Path:
    """The wheel, under its tag."""
    cc = compiler(each.target)
    environment = {
        **os.environ,
        "CC": cc,
        "LDSHARED": f"{cc} -shared {LINKING}",
        "LDFLAGS": "-s",
        "AR": archiver(),
        "_PYTHON_HOST_PLATFORM": f"linux-{each.machine}",
    }
    with tempfile.TemporaryDirectory() as place:
        command = (sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check")
        options = ("--no-build-isolation", "--no-deps", "--no-cache-dir", "--wheel-dir", place)
        run(*command, *options, sdist, env=environment)
        (wheel,) = Path(place).glob("*.whl")
        run(sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", each.tag, wheel)
        (wheel,) = Path(place).glob("*.whl")
        return Path(shutil.move(wheel, out / wheel.name))


def check(wheel: Path, each: Platform) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".so")]
        data = archive.read(name)
    elf = ELFFile(BytesIO(data))
    machine = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}[elf.header["e_machine"]]
    assert machine == each.machine, f"{wheel.name} is for {machine}"
    assert elf.get_section_by_name(".symtab") is None, f"{wheel.name} is not stripped"
    symbols = elf.get_section_by_name(".dynsym").iter_symbols()
    defined = {one.name for one in symbols if one.entry.st_shndx != "SHN_UNDEF"}
    assert defined == EXPORTED, f"{wheel.name} exports {defined - EXPORTED}"
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
    wheel_kib = wheel.stat().st_size >> 10
    each.ran("checked", f"wheel {wheel_kib} KiB, module {len(data) >> 10}: {contents(elf)}")


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
        name = f"CPython {platform.python_version()}"
        each.ran(name, f"installed without a compiler in {took:.1f} s, tried, {said}")
        run(python, "-m", "pip", "uninstall", *options[:2], "--yes", "pip", "setuptools")
        listed = ("environment", python, "--pyproject", ROOT / "pyproject.toml")
        run(TOOLS / "cyclonedx-py", *listed, "--output-reproducible", "--output-file", bill)


def try_newer(wheel: Path, each: Platform) -> None:
    """With every newer CPython that pyproject.toml claims, if it is here or in Debian."""
    claimed = re.findall(r'Python :: 3\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    for minor in range(sys.version_info.minor + 1, max(map(int, claimed)) + 1):
        name = f"CPython 3.{minor}"
        try:
            python = newer_python(f"3.{minor}")
        except foreign.NoSuchPython as reason:
            each.did_not_run(name, f"not tried: {reason}")
            continue
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "empty").mkdir()
            environment = {**os.environ, "PATH": str(Path(place) / "empty"), "HOME": place}
            run(python, "-m", "venv", "--without-pip", Path(place) / "venv")
            inner = Path(place) / "venv" / "bin" / "python"
            pip = (sys.executable, "-m", "pip", "--python", inner, "install", "--quiet")
            options = ("--disable-pip-version-check", "--only-binary=:all:")
            # What has no wheel for a new CPython yet is compiled; ours never is.
            compiled = needs_compiler(pip, wheel)
            run(*pip, *options, *compiled, wheel, env=foreign.with_headers(python))
            run(inner, "-c", SMOKE, cwd=place, env=environment)
            said = run(inner, "-c", SMOKE, cwd=place, env=environment).strip()
            version = run(inner, "-c", foreign.PRINT_VERSION).strip()
        words = [word.partition("=")[2] for word in compiled]
        more = f" ({', '.join(words)} has no wheel for it and was compiled)" if words else ""
        each.ran(f"CPython {version}", f"tried, {said}{more}")


def needs_compiler(pip: tuple[object, ...], wheel: Path) -> list[str]:
    """Options of pip for the dependencies that have no wheel for this Python."""
    for options in ([], ["--no-binary=posix_ipc"]):
        if passes([*map(str, pip), "--dry-run", "--only-binary=:all:", *options, str(wheel)]):
            return options
    raise SystemExit(f"{wheel.name}: pip finds no dependencies for {pip[4]}")


def newer_python(minor: str) -> Path:
    """On PATH, if it runs: a version manager may have such a name for what it has not."""
    found = shutil.which(f"python{minor}")
    if found is not None and passes([found, "-c", "import venv, ensurepip"]):
        return Path(found)
    return foreign.newer(minor, ROOT / "build" / "pythons" / minor)


def foreign_smoke(wheel: Path, each: Platform, *, emulate: bool) -> None:
    """The same with a Python that this machine has not."""
    is_emulated = each.machine != platform.machine()
    what = "CPython in qemu" if is_emulated else "CPython"
    if is_emulated and not emulate:
        each.did_not_run(what, "not tried (QEMU=1 does)")
        return
    with tempfile.TemporaryDirectory() as place:
        try:
            if each.is_musl:
                kept = ROOT / "build" / "pythons" / each.target
                python = foreign.musl(each.machine, kept, compiler(each.target), archiver())
                tags = [f"musllinux_1_{minor}_{each.machine}" for minor in (2, 1, 0)]
            else:
                python = foreign.emulated(each.machine, Path(place))
                tags = [f"manylinux_2_{minor}_{each.machine}" for minor in (GLIBC[1], 27, 17)]
        except foreign.NoSuchPython as reason:
            each.did_not_run(what, f"not tried: {reason}")
            return
        what = f"CPython {python.version}" + (f", qemu-{each.machine}" if is_emulated else "")
        try:
            python.install(wheel, tags)
            python.run("-c", SMOKE)
            said = python.run("-c", SMOKE).strip()
        except foreign.NoSuchPython as failed:
            raise SystemExit(f"{wheel.name} with {what}: {failed}") from None
    each.ran(what, f"tried, {said}", "deaths in a commit" if is_emulated else "")


def native_tests(each: Platform, *, emulate: bool) -> None:
    """Cross-built against musl, without shared libraries, and run as far as that goes."""
    emulator = []
    if each.machine != platform.machine():
        if not emulate:
            each.did_not_run("native tests", "not run (QEMU=1 does, in a quarter of an hour)")
            return
        found = shutil.which(f"qemu-{each.machine}")
        if found is None:
            each.did_not_run("native tests", f"not run: there is no qemu-{each.machine}")
            return
        emulator = [found]
    left_out = (*NOT_MUSL_S, *(DEATHS if emulator else ()))
    with tempfile.TemporaryDirectory() as place:
        programs, not_built = build_tests(each, Path(place), left_out)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            ended = list(pool.map(lambda path: run_test([*emulator, str(path)]), programs))
    what = "native tests" + (f", qemu-{each.machine}" if emulator else "")
    failed = [f"{one.name}: {one.failed}" for one in ended if one.failed]
    skipped = Counter(reason for one in ended for reason in one.skipped)
    not_run = [f"{name}*" for name in left_out]
    not_run += [f"not built: {name}" for name in not_built]
    not_run += [f"{number} tests: {reason}" for reason, number in skipped.most_common()]
    not_run += [f"failed: {text}" for text in failed]
    passed = sum(one.passed for one in ended)
    programs_passed = f"{len(programs) - len(failed)} of {len(programs)} programs"
    each.ran(what, f"{programs_passed}, {passed} tests", "; ".join(not_run))


def build_tests(
    each: Platform, place: Path, left_out: tuple[str, ...]
) -> tuple[list[Path], list[str]]:
    """The programs, and the names of those that the compiler or the linker did not make."""
    script = place / "cc"
    script.write_text(f'#!/bin/sh\nexec {compiler(each.target)} -Wno-error "$@" -Wno-error\n')
    script.chmod(0o755)
    ar = place / "ar"
    ar.write_text(f'#!/bin/sh\nexec {archiver()} "$@"\n')
    ar.chmod(0o755)
    tools = [f"-DCMAKE_C_COMPILER={script}", f"-DCMAKE_AR={ar}"]
    kind = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_EXE_LINKER_FLAGS=-static"]
    target = ["-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={each.machine}"]
    tree = place / "build"
    run("cmake", "-S", ROOT, "-B", tree, *tools, *kind, *target, "-DCMAKE_RANLIB=/bin/true")
    subprocess.run(["cmake", "--build", tree, "-j2", "--", "-k"], capture_output=True, check=False)
    wanted = {path.stem for path in (ROOT / "native" / "tests").glob("*/test_*.c")}
    wanted = {name for name in wanted if not name.startswith(left_out)}
    made = [
        path
        for path in sorted((tree / "native" / "tests").rglob("test_*"))
        if path.name in wanted and path.is_file() and os.access(path, os.X_OK)
    ]
    return made, sorted(wanted - {path.name for path in made})


@dataclass
class Ended:
    """What a test program said: how many tests passed, what it left out and why, what failed."""

    name: str
    passed: int
    skipped: list[str]
    failed: str = ""


def run_test(command: list[str]) -> Ended:
    name = Path(command[-1]).name
    factor = os.environ.get("PYNOTIFY_TIME_FACTOR", "1")
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        begin = time.monotonic()
        try:
            process = subprocess.run(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=TEST_SECONDS * float(factor),
                check=False,
            )
            status: int | None = process.returncode
        except subprocess.TimeoutExpired:
            status = None
        took = time.monotonic() - begin
        file.seek(0)
        lines = file.read().splitlines()
    skipped = [line.partition("# skip: ")[2] for line in lines if "# skip: " in line]
    ran = [line for line in lines if line.startswith("ok ") and "# skip: " not in line]
    ended = Ended(name, len(ran), skipped)
    if status is None:
        ended.failed = f"not at its end after {took:.0f} s and {len(ran)} tests"
    elif status == SKIPPED:
        ended.skipped.append("the machine does not let it run")
    elif status != 0:
        said = [line for line in lines if not line.startswith(("ok ", "#"))][-1:]
        ended.failed = f"{said[0] if said else 'no word'} (status {status})"
    return ended


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
            try_newer(wheel, each)
        else:
            foreign_smoke(wheel, each, emulate=options.qemu)
        if each.is_musl:
            native_tests(each, emulate=options.qemu)
    run(TOOLS / "twine", "check", "--strict", options.sdist, *wheels)
    run(TOOLS / "check-wheel-contents", "--ignore", "W009", *wheels)  # two packages are meant
    print("\n" + table(chosen), flush=True)


def table(chosen: list[Platform]) -> str:
    """What was run on each platform and what was not, in Markdown."""
    lines = ["| wheel | what | run | not run |", "|---|---|---|---|"]
    for each in chosen:
        lines += [f"| {each.tag} | {row.what} | {row.run} | {row.not_run} |" for row in each.rows]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
