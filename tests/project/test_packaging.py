"""What is in the sdist and in the wheel, and that the wheel works away from the checkout."""

from __future__ import annotations

import email
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from requirement import require

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
STEM = f"pynotify_ipc-{VERSION}"
SOURCES = (ROOT / "native" / "SOURCES").read_text().split()

NOT_OURS = ("tests/", "bench/", "native/tests/", ".git/", ".ci/")


def run(code: str, cwd: Path, **environment: str) -> str:
    """What `code` prints in a fresh interpreter, with nothing of this checkout around it."""
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(kind: str, tree: Path, out: Path) -> Path:
    """Call the build backend as pip does; kind is "sdist" or "wheel"."""
    run(f"import setuptools.build_meta as b; b.build_{kind}({str(out)!r})", cwd=tree)
    (made,) = out.glob(f"{STEM}*")
    return made


def test_what_python_calls_has_a_wrapper_and_nothing_else_has() -> None:
    """Of the crash points the tests call some; the release build's say that it has none."""
    build = runpy.run_path(str(ROOT / "native" / "ffi_build.py"))
    declared = set(re.findall(r"\b(pn_\w+)\s*\(", build["read_declarations"]()))
    texts = [path.read_text() for path in (ROOT / "pynotify").rglob("*.py")]
    called = set(re.findall(r"\bpn_\w+", "\n".join(texts)))
    assert set(build["C_ONLY"]).isdisjoint(called | declared)
    assert {name for name in declared - called if not name.startswith("pn_crash_")} == set()


def test_a_function_that_is_not_declared_cannot_be_left_out() -> None:
    without = runpy.run_path(str(ROOT / "native" / "ffi_build.py"))["without"]
    text = "\nint pn_a(int pn_b);\nint\npn_b(\nint n);\n"
    assert "pn_a" not in without(text, ["pn_a"])
    assert without(text, ["pn_b"]).strip() == "int pn_a(int pn_b);"
    with pytest.raises(SystemExit, match="pn_c is declared 0 times"):
        without(text, ["pn_c"])


def test_what_is_compiled_to_be_small_is_there() -> None:
    text = (ROOT / "setup.py").read_text()
    (names,) = re.findall(r"^SMALL = \((.*?)^\)", text, re.DOTALL | re.MULTILINE)
    paths = re.findall(r'"(native/.*?)"', names)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.fixture
def sdist(tmp_path: Path) -> Path:
    """Built from a copy, extensions built in place and all, as a build leaves files behind."""
    tree = tmp_path / "tree"
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, tree, ignore=ignored)
    return build("sdist", tree, tmp_path / "sdist")


def test_sdist_holds_what_a_build_needs_and_no_more(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {member.name.removeprefix(f"{STEM}/") for member in archive if member.isfile()}
    needed = {
        "setup.py",
        "pyproject.toml",
        "CMakeLists.txt",
        "LICENSE",
        "README.md",
        "native/SOURCES",
        "native/ffi_build.py",
        "native/include/pynotify.h",
        "native/include/pynotify_topic.h",
        "pynotify/__init__.py",
        "pynotify/_native.pyi",
        "pynotify/py.typed",
        *SOURCES,
        *(str(path.relative_to(ROOT)) for path in (ROOT / "native" / "src").rglob("*.h")),
    }
    assert needed <= names
    assert not [name for name in names if name.startswith(NOT_OURS) or name.endswith(".so")]


def test_sdist_is_the_same_when_it_is_made_again(sdist: Path, tmp_path: Path) -> None:
    """Also when a file has another time, and what is generated another mode."""
    before = os.umask(0o077)
    try:
        (tmp_path / "tree" / "README.md").touch()
        again = build("sdist", tmp_path / "tree", tmp_path / "again")
    finally:
        os.umask(before)
    assert again.read_bytes() == sdist.read_bytes()


def test_c_library_can_be_configured_from_the_sdist(sdist: Path, tmp_path: Path) -> None:
    cmake = shutil.which("cmake") or shutil.which("cmake", path=str(Path(sys.executable).parent))
    if cmake is None:
        require("cmake")
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path)
    done = subprocess.run(
        [str(cmake), "-S", str(tmp_path / STEM), "-B", str(tmp_path / "build")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(300)  # compiles the core
@pytest.mark.full
def test_wheel_from_sdist_is_complete_and_runs(sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path)
    wheel = build("wheel", tmp_path / STEM, tmp_path / "wheel")
    assert wheel.name.startswith(f"{STEM}-cp311-abi3-")

    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = email.message_from_bytes(archive.read(f"{STEM}.dist-info/METADATA"))
        archive.extractall(installed)

    of_checkout = {
        str(path.relative_to(ROOT))
        for package in ("pynotify", "spark_jobs")
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".pyi") or path.name == "py.typed"
    }
    of_checkout |= {f"pynotify/cli/shell/{name}" for name in ("pynotify", "_pynotify")}
    manual = f"{STEM}.data/data/share/man/man1/pynotify.1"
    of_wheel = {name for name in names if ".dist-info/" not in name}
    assert of_wheel == of_checkout | {"pynotify/_native.abi3.so", manual}

    assert metadata["Name"] == "pynotify-ipc"
    assert metadata["Version"] == VERSION
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "PostgreSQL"
    assert {"spark", "test", "bench"} <= set(metadata.get_all("Provides-Extra", []))
    assert f"{STEM}.dist-info/licenses/LICENSE" in names

    report = run(
        "import importlib.metadata, pynotify, pynotify._native as native\n"
        "print(pynotify.__file__, native.__file__, importlib.metadata.version('pynotify-ipc'))\n"
        "assert native.lib.pn_crash_arm(b'', 1, native.lib.PN_CRASH_KILL) < 0\n"
        "for script in importlib.metadata.distribution('pynotify-ipc').entry_points:\n"
        "    script.load()\n",
        cwd=tmp_path,
        PYTHONPATH=str(installed),
    ).split()
    assert report == [
        str(installed / "pynotify" / "__init__.py"),
        str(installed / "pynotify" / "_native.abi3.so"),
        VERSION,
    ]
