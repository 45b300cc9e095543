"""`pynotify notify`: where the payload comes from, byte for byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from console import run

import pynotify


@pytest.fixture
def received(conn: pynotify.Connection) -> Callable[[], list[bytes]]:
    """The payloads that came on the channel "c"."""
    conn.listen("c")
    return lambda: [message.data for message in conn.poll() if isinstance(message, pynotify.Notify)]


Received = Callable[[], list[bytes]]


@pytest.mark.parametrize(
    ("words", "payload"),
    [
        (["c", "hello"], b"hello"),
        (["c"], b""),
        (["c", ""], b""),
        (["c", "two words"], b"two words"),
        (["c", "ä"], "ä".encode()),
        (["c", b"\xff\xfe"], b"\xff\xfe"),
        (["c", "-1"], b"-1"),
        (["c", "--", "--name"], b"--name"),
        (["--", "c", "-x"], b"-x"),
    ],
    ids=repr,
)
def test_payload_from_the_command_line(
    engine_name: str, received: Received, words: list[str | bytes], payload: bytes
) -> None:
    done = run("notify", "--name", engine_name, *words)
    assert (done.status, done.out, done.err) == (0, "", "")
    assert received() == [payload]


def test_options_may_stand_between(engine_name: str, received: Received) -> None:
    assert run("notify", "c", "-n", engine_name, "hello").status == 0
    assert received() == [b"hello"]


def test_standard_input_is_the_payload(engine_name: str, received: Received) -> None:
    assert run("notify", "-n", engine_name, "c", "-", stdin=b"a\x00b\n\xff\n").status == 0
    assert received() == [b"a\x00b\n\xff\n"]


@pytest.mark.parametrize("words", [["c"], ["c", "-"]], ids=" ".join)
def test_a_notification_for_each_line(
    engine: pynotify.Engine, engine_name: str, received: Received, words: list[str]
) -> None:
    before = engine.stat().commits
    done = run("notify", "-n", engine_name, *words, "--lines", stdin=b"one\n\ntwo\none\nend")
    assert done.status == 0
    assert received() == [b"one", b"", b"two", b"end"]
    assert engine.stat().commits - before == 1


def test_no_line_is_no_notification(engine_name: str, received: Received) -> None:
    assert run("notify", "-n", engine_name, "c", "--lines").status == 0
    assert received() == []


def test_all_lines_or_none(engine_name: str, received: Received) -> None:
    done = run("notify", "-n", engine_name, "c", "--lines", stdin=b"good\n" + b"x" * 8000 + b"\n")
    assert done.status == 1
    assert "payload string too long" in done.err
    assert received() == []


def test_payload_too_long(engine_name: str, received: Received) -> None:
    done = run("notify", "-n", engine_name, "c", "-", stdin=b"x" * 8000)
    assert done.status == 1
    assert done.err.startswith("pynotify notify: payload string too long\n")
    assert received() == []


@pytest.mark.parametrize("lines", [False, True], ids=["one", "lines"])
def test_headers(engine_name: str, conn: pynotify.Connection, lines: bool) -> None:
    conn.listen("c")
    words = ["--lines"] if lines else ["hello"]
    headers = [
        "--header",
        "a=b=c",
        "--header",
        "ü=ä",
        "--header",
        "n=1",
        "--header",
        "n=",
        "--header==",
    ]
    done = run("notify", "-n", engine_name, "c", *words, *headers, stdin=b"hello\nhello\nyou\n")
    assert (done.status, done.out, done.err) == (0, "", "")
    expected = {"a": "b=c", "ü": "ä", "n": "", "": ""}
    messages = [message for message in conn.poll() if isinstance(message, pynotify.Notify)]
    assert [(message.payload, message.headers) for message in messages] == [
        (payload, expected) for payload in (["hello", "you"] if lines else ["hello"])
    ]


def test_a_header_that_is_none(engine_name: str, received: Received) -> None:
    done = run("notify", "-n", engine_name, "c", "hello", "--header", "kind")
    assert done.status == 2
    assert "invalid NAME=VALUE value: 'kind'" in done.err
    assert received() == []


def test_headers_too_long(engine_name: str, received: Received) -> None:
    done = run("notify", "-n", engine_name, "c", "hello", "--header", "k=" + "v" * 66_000)
    assert done.status == 1
    assert done.err.startswith("pynotify notify: headers too long\n")
    assert received() == []


def test_a_header_that_is_no_utf8(engine_name: str, conn: pynotify.Connection) -> None:
    """It arrives as the bytes that it was given as."""
    conn.listen("c")
    assert run("notify", "-n", engine_name, "c", "--header", b"k=\xff").status == 0
    (message,) = conn.poll()
    assert isinstance(message, pynotify.Notify)
    assert message.headers["k"].encode("utf-8", "surrogateescape") == b"\xff"


def test_database(engine_name: str, received: Received) -> None:
    assert run("notify", "-n", engine_name, "--database", "other", "c", "x").status == 0
    assert received() == []


def test_queue_full(new_name: Callable[[], str]) -> None:
    name = new_name()
    with pynotify.connect(name, queue_pages=64) as conn:
        conn.listen("c")
        conn.notify_many("c", [bytes([65 + number]) * 7000 for number in range(60)])
        text = b"".join(bytes([66 + number]) * 7000 + b"\n" for number in range(10))
        done = run("notify", "-n", name, "c", "--lines", stdin=text)
        assert done.status == 1
        assert "too many notifications in the NOTIFY queue" in done.err
        assert str(conn.pid) in done.err


def test_creates_the_segment(new_name: Callable[[], str]) -> None:
    name = new_name()
    assert run("notify", "-n", name, "c", "hello").status == 0
    assert name in [info.name for info in pynotify.segments()]


def test_bad_channel(engine_name: str) -> None:
    done = run("notify", "-n", engine_name, "", "hello")
    assert done.status == 1
    assert "channel name cannot be empty" in done.err


def test_how_many_listen(engine_name: str, conn: pynotify.Connection, received: Received) -> None:
    done = run("notify", "-n", engine_name, "c", "hello", "--listeners", "--header", "k=v")
    assert (done.status, done.out, done.err) == (0, "1\n", "")
    assert received() == [b"hello"]
    conn.unlisten("c")
    assert run("notify", "-n", engine_name, "c", "hello", "--listeners").out == "0\n"
