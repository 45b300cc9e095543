"""`make docs`: the pages are whole, and need no network."""

from __future__ import annotations

import fcntl
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pynotify
import pynotify.bridge
import pynotify.pubsub
import pynotify.topics

ROOT = Path(__file__).resolve().parents[2]
MODULES = [pynotify, pynotify.topics, pynotify.pubsub, pynotify.bridge, pynotify.errors]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built with --strict: a warning is an error.  The workers of a run share one."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    directory, built = base / "site", base / "site-built"
    with (base / "site-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            build(directory)
            built.touch()
    return directory


def build(directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr


@pytest.fixture(scope="module")
def reference(site: Path) -> str:
    return "".join(page.read_text() for page in (site / "reference").glob("*.html"))


def public_members(cls: type) -> set[str]:
    """Methods and properties with a docstring, but for those of built-in base classes."""
    found = set()
    for name, member in inspect.getmembers(cls):
        owner = next(c for c in cls.__mro__ if name in vars(c))
        ours = owner.__module__.partition(".")[0] == "pynotify"
        described = callable(member) or isinstance(member, property)
        if ours and described and not name.startswith("_") and inspect.getdoc(member):
            found.add(name)
    return found


def test_every_public_name_has_an_entry(reference: str) -> None:
    entries = set(re.findall(r'id="(pynotify[\w.]*)"', reference))
    names = {entry.rpartition(".")[2] for entry in entries}
    for module in MODULES:
        assert set(module.__all__) <= names, module.__name__
    assert "pynotify.contrib.prometheus.PynotifyCollector" in entries


def test_every_method_has_an_entry(reference: str) -> None:
    entries = set(re.findall(r'id="pynotify[\w.]*?(\w+\.\w+)"', reference))
    missing = []
    for name in pynotify.__all__:
        found = getattr(pynotify, name)
        if isinstance(found, type) and not issubclass(found, BaseException | tuple):
            missing += [
                f"{name}.{m}" for m in public_members(found) if f"{name}.{m}" not in entries
            ]
    assert missing == []


def test_headers_are_shown(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "reference" / "c.html").read_text())
    for name in ("pn_open", "pn_wait", "pn_topic_publish", "PN_EQUEUEFULL"):
        assert name in text


def test_nothing_is_fetched(site: Path) -> None:
    """Scripts, styles, fonts, pictures: all of it is in the directory."""
    for page in site.rglob("*.html"):
        tags = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page.read_text())
        for tag in tags:
            target = re.search(r'(?:src|href)="([^"]*)"', tag)
            if target is not None:
                assert not re.match(r"[a-z]+:|//", target[1]), f"{page.name}: {tag}"
                file = page.parent / target[1].partition("?")[0].partition("#")[0]
                assert file.exists() or page.name == "404.html", f"{page.name}: {tag}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", style.read_text()), style.name


def test_links_lead_to_files_of_the_directory(site: Path) -> None:
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue
        for link in re.findall(r'<a [^>]*href="([^"#?:]+)["#?]', page.read_text()):
            assert (page.parent / link).is_file(), f"{page.name}: {link}"


def test_the_search_has_its_index_in_a_script(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text()
    assert index.startswith("var __index = ")
    assert "tombstone" in index
    assert "iframe-worker.js" in (site / "index.html").read_text()
