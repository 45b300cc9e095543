"""Django: notifications follow the database's transaction; the cache forgets in all processes."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pynotify
from forking import ForkedChild, in_child
from receiving import payloads, receive, wait_until
from requirement import require

try:
    import django
    from django.conf import settings
    from django.core.management import CommandError, call_command
    from django.db import connections, transaction
except ImportError as missing:
    require("django", str(missing))

if not settings.configured:
    sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    settings.configure(DATABASES={"default": sqlite})
    django.setup()

from django.core.management import load_command_class

import pynotify.contrib.django as ours
from pynotify.contrib import _own
from pynotify.contrib.django.cache import GenerationCache


@pytest.fixture(autouse=True)
def project(segment_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A database in memory, and the segment of the test."""
    monkeypatch.setattr(settings, "PYNOTIFY_SEGMENT", segment_name, raising=False)
    with connections["default"].cursor() as cursor:
        cursor.execute("CREATE TABLE t (n INTEGER UNIQUE)")
    yield
    connections["default"].close()
    del connections["default"]
    ours.connection().close()


def insert(number: int) -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute("INSERT INTO t VALUES (%s)", [number])


def rows() -> list[int]:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT n FROM t ORDER BY n")
        return [row[0] for row in cursor.fetchall()]


@pytest.fixture
def ear(segment_name: str) -> Iterator[pynotify.Connection]:
    with pynotify.connect(segment_name) as conn:
        conn.listen("c")
        yield conn


def commits(segment_name: str) -> int:
    with pynotify.open(segment_name, create=False) as engine:
        return engine.stat().commits


def test_at_the_commit_and_as_one_transaction(ear: pynotify.Connection, segment_name: str) -> None:
    before = commits(segment_name)
    with transaction.atomic():
        for number in (1, 2, 2, 3):
            ours.notify("c", number)
        assert ear.poll() == []
    assert payloads(receive(ear, 3)) == ["1", "2", "3"]
    assert commits(segment_name) == before + 1


def test_outside_of_a_transaction_at_once(ear: pynotify.Connection) -> None:
    ours.notify("c", b"\xff\x00")
    assert receive(ear, 1)[0].data == b"\xff\x00"


def test_never_when_it_is_rolled_back(ear: pynotify.Connection) -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        ours.notify("c", "lost")
        raise RuntimeError
    ours.notify("c", "kept")
    assert payloads(receive(ear, 1)) == ["kept"]


@pytest.mark.parametrize("after", [True, False], ids=["something after it", "nothing after it"])
def test_an_undone_savepoint(ear: pynotify.Connection, after: bool) -> None:
    with transaction.atomic():
        ours.notify("c", "1")
        with pytest.raises(RuntimeError), transaction.atomic():
            ours.notify("c", "undone")
            raise RuntimeError
        with transaction.atomic():
            ours.notify("c", "2")
        with pytest.raises(RuntimeError), transaction.atomic():
            ours.notify("c", "undone, too")
            raise RuntimeError
        if after:
            ours.notify("c", "3")
    expected = ["1", "2", "3"] if after else ["1", "2"]
    assert payloads(receive(ear, len(expected))) == expected
    assert ear.poll() == []


def test_other_hooks_run_as_they_would(ear: pynotify.Connection) -> None:
    called: list[str] = []
    with transaction.atomic():
        transaction.on_commit(lambda: called.append("a"))
        ours.notify("c", "1")
        transaction.on_commit(lambda: called.extend(payloads(ear.poll())))
        ours.notify("c", "2")
    assert called == ["a", "1", "2"]


def test_what_cannot_be_sent_is_logged_or_raised(
    ear: pynotify.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    with transaction.atomic():
        ours.notify("c", "x" * 10_000)
        insert(1)
    assert rows() == [1]
    assert "payload string too long" in caplog.text
    with pytest.raises(pynotify.PayloadTooLong), transaction.atomic():
        ours.notify("c", "x" * 10_000, robust=False)
    assert ear.poll() == []


def test_rows_and_notifications_or_neither(ear: pynotify.Connection) -> None:
    with ours.transaction():
        insert(1)
        ours.notify("c", "1")
        with pytest.raises(RuntimeError), transaction.atomic():
            ours.notify("c", "undone")
            raise RuntimeError
    assert payloads(receive(ear, 1)) == ["1"]
    with pytest.raises(pynotify.PayloadTooLong), ours.transaction():
        insert(2)
        ours.notify("c", "x" * 10_000)
    with pytest.raises(django.db.IntegrityError), ours.transaction():
        ours.notify("c", "never")
        insert(1)
    with transaction.atomic(), pytest.raises(pynotify.ProgrammingError), ours.transaction():
        pass
    ours.notify("c", "last")
    assert payloads(receive(ear, 1)) == ["last"]
    assert rows() == [1]


# ---- the cache -----------------------------------------------------------------------------------


@pytest.fixture
def new_cache(segment_name: str) -> Callable[..., GenerationCache]:
    return lambda **options: GenerationCache(segment_name, {"OPTIONS": options})


def test_deleted_in_another_process(new_cache: Callable[..., GenerationCache]) -> None:
    cache = new_cache()
    assert cache.get("key") is None
    cache.set("key", [1])
    cache.set("other", 2)
    assert cache.get("key") == [1]
    assert in_child(lambda: (cache.get("key"), cache.delete("key"), cache.get("key"))) == (
        [1],
        True,
        None,
    )
    assert cache.get("key") is None
    assert "key" not in cache
    assert cache.get("other") == 2
    in_child(cache.clear)
    assert cache.get("other") is None
    cache.set_many({"a": 1, "b": 2})
    in_child(lambda: cache.delete_many(["a", "b"]))
    assert cache.get_many(["a", "b"]) == {}
    assert cache.get_or_set("a", lambda: 3) == 3
    assert cache.incr("a") == 4
    assert cache.add("a", 5) is False
    with pytest.raises(ValueError, match="not found"):
        cache.incr("b")


def test_what_was_computed_before_a_delete_is_not_kept(
    new_cache: Callable[..., GenerationCache],
) -> None:
    cache = new_cache()
    assert cache.get("key") is None  # now this process reads the data; meanwhile
    in_child(lambda: cache.delete("key"))
    cache.set("key", "of before")
    assert cache.get("key") is None
    cache.set("key", "new")
    assert cache.get("key") == "new"


def test_nor_is_what_was_added(new_cache: Callable[..., GenerationCache]) -> None:
    """Not by get_or_set() either, which is get(), the function, and add()."""
    cache = new_cache()
    assert cache.get("key") is None
    in_child(lambda: cache.delete("key"))
    assert cache.add("key", "of before")
    assert cache.get("key") is None

    def computed() -> str:
        in_child(lambda: cache.delete("key"))
        return "of before"

    assert cache.get_or_set("key", computed) == "of before"
    assert cache.get("key") is None
    assert cache.get_or_set("key", "new") == "new" == cache.get("key")
    assert not cache.add("key", "another")


def test_versions_names_and_bad_settings(new_cache: Callable[..., GenerationCache]) -> None:
    a, b = new_cache(name="a"), new_cache(name="b")
    a.set("key", 1, version=1)
    a.set("key", 2, version=2)
    b.set("key", 3)
    a.delete("key", version=1)
    b.clear()
    assert (a.get("key"), a.get("key", version=2), b.get("key")) == (None, 2, None)
    with pytest.raises(pynotify.ProgrammingError):
        GenerationCache("redis://localhost", {})


def test_a_segment_that_is_removed(
    new_cache: Callable[..., GenerationCache], segment_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes delete in the new one, and hear what is notified there."""
    monkeypatch.setattr(_own, "_LOOK_S", 0.0)
    cache = new_cache()
    cache.set("key", "old")
    ours.connection()
    pynotify.unlink(segment_name, force=True)
    assert cache.get("key") is None
    cache.set("key", "new")
    assert cache.get("key") == "new"
    assert in_child(lambda: new_cache().delete("key"))
    assert cache.get("key") is None
    with pynotify.connect(segment_name) as another:
        another.listen("c")
        ours.notify("c", "1")
        assert payloads(receive(another, 1)) == ["1"]


def test_threads_see_one_cache(new_cache: Callable[..., GenerationCache]) -> None:
    cache = new_cache()
    cache.set("key", 1)
    thread = threading.Thread(target=lambda: cache.delete("key"))
    thread.start()
    thread.join()
    assert cache.get("key") is None


STORED, SAID, END = range(3)


def work(segment: str, words: Any, writes: bool) -> int:
    """A writer raises a number, and then says so; a reader never gets less than was said."""
    cache = GenerationCache(segment, {})
    looked = 0
    while not words[END]:
        if writes:
            words[STORED] += 1
            cache.delete("number")
            words[SAID] = words[STORED]
        else:
            said = words[SAID]
            assert cache.get_or_set("number", lambda: int(words[STORED])) >= said
            looked += 1
    return looked


def test_four_processes_of_which_one_is_killed(segment_name: str) -> None:
    words = multiprocessing.get_context("fork").RawArray("q", 3)
    children = [
        ForkedChild(lambda writes=writes: work(segment_name, words, writes))  # type: ignore[misc]
        for writes in (True, False, False, False)
    ]
    wait_until(lambda: words[SAID] > 200, "it has written some")
    os.kill(children[3].pid, signal.SIGKILL)
    children[3].join()
    before = words[SAID]
    wait_until(lambda: words[SAID] > before + 200, "it goes on")
    words[END] = 1
    assert all(child.result() >= 0 for child in children[:3])


# ---- the command ---------------------------------------------------------------------------------


def listen_command(*words: str) -> tuple[threading.Thread, io.StringIO, io.StringIO]:
    out, errors = io.StringIO(), io.StringIO()
    command = load_command_class("pynotify.contrib.django", "pynotify_listen")
    thread = threading.Thread(
        target=lambda: call_command(command, *words, stdout=out, stderr=errors)
    )
    thread.start()
    return thread, out, errors


def test_listen_prints_and_calls(segment_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []

    def handler(message: pynotify.Notify) -> None:
        heard.append(message.payload)
        if message.payload == "1":
            raise ValueError("of the handler")

    module = types.ModuleType("handlers_of_the_test")
    module.handler = handler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    printing, out, _ = listen_command("c", "--count", "2")
    calling, _, errors = listen_command(
        "c", "--count", "2", "--handler", "handlers_of_the_test.handler", "--segment", segment_name
    )
    with pynotify.connect(segment_name) as conn:
        wait_until(lambda: conn.listeners("c") == 2, "both listen")
        conn.notify("c", "1")
        conn.notify("c", "2")
    printing.join()
    calling.join()
    assert out.getvalue() == "c: 1\nc: 2\n"
    assert heard == ["1", "2"]
    assert "ValueError('of the handler')" in errors.getvalue()


def test_listen_refuses_a_handler_that_is_not() -> None:
    command = load_command_class("pynotify.contrib.django", "pynotify_listen")
    with pytest.raises(CommandError, match=r"no_module"):
        call_command(command, "c", "--handler", "no_module.no_function")
