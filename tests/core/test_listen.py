"""LISTEN, UNLISTEN, pg_listening_channels: C1 to C3, C6, C9, X3 to X6, O4, O5, O8, Q9."""

from __future__ import annotations

import pytest

import pynotify
from receiving import pairs, payloads, readable
from sessions import Connect, EngineFactory, Sessions


def test_listen_registers_for_channel_of_this_database(sessions: Sessions) -> None:
    """C1: LISTEN is for (current database, channel)."""
    listener, notifier = sessions(2)
    assert listener.listen("c1") is None
    notifier.notify("c1", "x")
    assert listener.heard() == [("c1", "x")]


def test_listen_takes_effect_at_commit(conn: pynotify.Connection, connect: Connect) -> None:
    """C1: not before its transaction commits."""
    other = connect()
    conn.begin()
    conn.listen("c1")
    other.notify("c1", "too early")
    conn.commit()
    other.notify("c1", "in time")
    assert payloads(conn.poll()) == ["in time"]


def test_listen_is_rolled_back_with_its_transaction(
    conn: pynotify.Connection, connect: Connect
) -> None:
    """C1."""
    conn.begin()
    conn.listen("c1")
    conn.rollback()
    connect().notify("c1", "x")
    assert conn.listening_channels() == frozenset()
    assert conn.poll() == []


def test_listen_is_idempotent(conn: pynotify.Connection) -> None:
    """C1: listening twice delivers once, and one UNLISTEN ends it."""
    conn.listen("c1")
    conn.listen("c1", "c1")
    conn.notify("c1")
    assert pairs(conn.poll()) == [("c1", "")]
    conn.unlisten("c1")
    conn.notify("c1")
    assert conn.poll() == []


def test_unlisten_takes_effect_at_commit(conn: pynotify.Connection, connect: Connect) -> None:
    """C2: what is committed meanwhile is dropped with the registration, as it was not read."""
    other = connect()
    conn.listen("c1")
    conn.begin()
    conn.unlisten("c1")
    assert conn.listening_channels() == {"c1"}
    conn.rollback()
    other.notify("c1", "still there")
    assert payloads(conn.poll()) == ["still there"]


def test_unlisten_of_what_is_not_listened_to_is_silent(conn: pynotify.Connection) -> None:
    """C2: no warning, no error."""
    assert conn.unlisten("never") is None
    conn.unlisten_all()
    with conn.transaction():
        conn.unlisten("never")


def test_unlisten_all_cancels_all_also_staged(sessions: Sessions) -> None:
    """C3: also what is staged earlier in the same transaction."""
    listener, notifier = sessions(2)
    listener.listen("a")
    listener.begin()
    listener.listen("b")
    listener.unlisten_all()
    listener.commit()
    notifier.notify("a")
    notifier.notify("b")
    assert listener.listening_channels() == frozenset()
    assert listener.heard() == []


def test_unlisten_all_is_ordered_with_other_actions(conn: pynotify.Connection) -> None:
    """C3: `LISTEN a; UNLISTEN *; LISTEN b` leaves exactly {b}."""
    with conn.transaction():
        conn.listen("a")
        conn.unlisten_all()
        conn.listen("b")
    assert conn.listening_channels() == {"b"}


def test_listening_channels_are_the_committed_ones(conn: pynotify.Connection) -> None:
    """C6: a LISTEN of the open transaction is not shown, an UNLISTEN not yet effective."""
    conn.listen("a", "b")
    conn.begin()
    conn.listen("c")
    conn.unlisten("a")
    assert conn.listening_channels() == {"a", "b"}
    conn.commit()
    channels = conn.listening_channels()
    assert channels == {"b", "c"}
    assert isinstance(channels, frozenset)


def test_listening_channels_are_per_connection(connect: Connect) -> None:
    """C6: "channels this session is listening on"."""
    one, two = connect(), connect()
    one.listen("a")
    two.listen("b")
    assert (one.listening_channels(), two.listening_channels()) == ({"a"}, {"b"})


def test_message_has_pid_channel_and_payload(sessions: Sessions) -> None:
    """C9: sender's pid, channel, payload; and the sender's backend id."""
    listener, notifier = sessions(2)
    listener.listen("c1")
    notifier.notify("c1", "hello")
    (message,) = listener.poll()
    assert message[:4] == ("c1", "hello", notifier.pid, notifier.backend_id)


def test_without_channels_nothing_happens(
    engine: pynotify.Engine, conn: pynotify.Connection
) -> None:
    """`listen()` and `unlisten()` without channels do nothing."""
    conn.listen("a")
    commits = engine.stat().commits
    conn.listen()
    conn.unlisten()
    assert conn.listening_channels() == {"a"}
    assert engine.stat().commits == commits


def test_one_call_is_one_transaction(engine: pynotify.Engine, conn: pynotify.Connection) -> None:
    """A call of `listen` or `unlisten` with several channels is one transaction."""
    before = engine.stat().commits
    conn.listen("a", "b", "c")
    assert engine.stat().commits == before + 1
    conn.unlisten("a", "b")
    assert engine.stat().commits == before + 2


@pytest.mark.parametrize("bad", ["", "x" * 64, "nul\0", "\udc80"])
def test_one_call_is_all_or_nothing(conn: pynotify.Connection, bad: str) -> None:
    """With one bad channel among them, none is listened to, or unlistened."""
    with pytest.raises(pynotify.InvalidChannelName):
        conn.listen("good", bad)
    assert conn.listening_channels() == frozenset()
    conn.listen("good", "better")
    with pytest.raises(pynotify.InvalidChannelName):
        conn.unlisten("good", bad)
    assert conn.listening_channels() == {"good", "better"}
    assert not conn.in_transaction


@pytest.mark.parametrize(
    ("actions", "left"),
    [
        (["listen", "unlisten"], set()),
        (["listen", "unlisten", "listen"], {"c"}),
        (["unlisten", "listen"], {"c"}),
        (["unlisten", "listen", "unlisten"], set()),
        (["listen", "listen", "unlisten"], set()),
    ],
)
@pytest.mark.parametrize("listening_before", [False, True])
def test_last_action_per_channel_wins(
    conn: pynotify.Connection, actions: list[str], left: set[str], listening_before: bool
) -> None:
    """X3, X5."""
    if listening_before:
        conn.listen("c")
    with conn.transaction():
        for action in actions:
            getattr(conn, action)("c")
    assert conn.listening_channels() == left
    conn.notify("c", "after")
    assert pairs(conn.poll()) == [("c", "after") for _ in left]


def test_unlisten_and_listen_in_one_transaction_leave_no_gap(
    conn: pynotify.Connection, connect: Connect
) -> None:
    """X4: what came before, and was not yet read, is still owed."""
    other = connect()
    conn.listen("c")
    other.notify("c", "before")
    conn.begin()
    conn.unlisten("c")
    conn.listen("c")
    other.notify("c", "during")
    conn.commit()
    other.notify("c", "after")
    assert payloads(conn.poll()) == ["before", "during", "after"]


def test_unlisten_all_and_listen_in_one_transaction_leave_no_gap(
    conn: pynotify.Connection, connect: Connect
) -> None:
    """X4 with `UNLISTEN *`: the other channel's messages are gone."""
    other = connect()
    conn.listen("c", "d")
    other.notify("c", "before")
    other.notify("d", "before")
    with conn.transaction():
        conn.unlisten_all()
        conn.listen("c")
    assert pairs(conn.poll()) == [("c", "before")]


def test_unlisten_and_listen_in_two_transactions_leave_a_gap(
    conn: pynotify.Connection, connect: Connect
) -> None:
    """X4: notifications between the two are never delivered, nor unread ones from before."""
    other = connect()
    conn.listen("c")
    other.notify("c", "before")
    conn.unlisten("c")
    other.notify("c", "between")
    conn.listen("c")
    other.notify("c", "after")
    assert payloads(conn.poll()) == ["after"]


def test_listen_and_unlisten_in_one_transaction_is_not_listening(sessions: Sessions) -> None:
    """X5."""
    listener, notifier = sessions(2)
    listener.begin()
    listener.listen("c")
    listener.unlisten("c")
    listener.commit()
    notifier.notify("c")
    assert listener.heard() == []


def test_notify_then_listen_hears_itself(conn: pynotify.Connection) -> None:
    """X6: `NOTIFY c; LISTEN c; COMMIT` gets the self-notify: registration precedes queueing."""
    with conn.transaction():
        conn.notify("c", "x")
        conn.listen("c")
    assert payloads(conn.poll()) == ["x"]


def test_notify_then_unlisten_does_not_hear_itself(conn: pynotify.Connection) -> None:
    """X6: `NOTIFY c; UNLISTEN c; COMMIT` does not."""
    conn.listen("c")
    with conn.transaction():
        conn.notify("c", "x")
        conn.unlisten("c")
    assert conn.poll() == []
    conn.listen("c")
    assert conn.poll() == []


def test_listener_gets_all_that_is_committed_after_its_listen(sessions: Sessions) -> None:
    """O4: everything committed after the instant of the LISTEN's commit."""
    listener, notifier = sessions(2)
    listener.listen("c")
    for number in range(50):
        notifier.notify("c", str(number))
    assert listener.heard() == [("c", str(number)) for number in range(50)]


def test_listen_starts_at_its_own_commit(connect: Connect) -> None:
    """O5, deliberately different: not at the position of another listener of the database.

    In PostgreSQL a first-time listener reads forward from there over committed entries.  Here
    it starts at its own commit, and pins nothing that is older.
    """
    slow, late, notifier = connect(), connect(), connect()
    slow.listen("c")
    notifier.notify("c", "before")
    late.listen("c")
    assert late.poll() == []
    notifier.notify("c", "after")
    assert payloads(late.poll()) == ["after"]
    assert payloads(slow.poll()) == ["before", "after"]


def test_without_a_listener_a_message_is_lost(sessions: Sessions) -> None:
    """O8: lost for ever to future listeners."""
    listener, notifier = sessions(2)
    notifier.notify("c", "not heard")
    listener.listen("c")
    assert listener.heard() == []


def test_nothing_unread_is_delivered_after_unlisten(
    conn: pynotify.Connection, connect: Connect
) -> None:
    """What has not been returned when the UNLISTEN commits is not delivered any more."""
    other = connect()
    conn.listen("c", "d")
    for number in range(3):
        other.notify("c", str(number))
    other.notify("d", "stays")
    assert payloads(conn.poll(max=1)) == ["0"]
    conn.unlisten("c")
    assert pairs(conn.poll()) == [("d", "stays")]


def test_unlisten_frees_what_it_had_not_read(
    engine: pynotify.Engine, conn: pynotify.Connection, connect: Connect
) -> None:
    """UNLISTEN of the last channel pins nothing: neither fd nor queue remember the unread."""
    conn.listen("c")
    connect().notify("c", "x" * 7000)
    assert readable(conn.fileno())
    conn.unlisten("c")
    assert conn.poll() == []
    assert not readable(conn.fileno())
    assert engine.stat().tail_holder_pid in (0, None)


def test_closing_ends_all_registrations(
    engine: pynotify.Engine, conn: pynotify.Connection, connect: Connect
) -> None:
    """Q9: a session that ends is removed from every channel."""
    listener = connect()
    listener.listen("c", "d")
    listener.close()
    before = engine.stat()
    conn.notify("c")
    after = engine.stat()
    assert after.signals_sent == before.signals_sent
    assert after.head == before.head, "a notification without a listener took room in the queue"
    assert [backend.backend_id for backend in after.backends] == [conn.backend_id]


def test_channel_of_63_bytes(conn: pynotify.Connection) -> None:
    """E2: the limit is in bytes of UTF-8."""
    names = ["x" * 63, "é" * 31 + "x", "\N{SNOWMAN}" * 21]
    assert all(len(name.encode()) == 63 for name in names)
    conn.listen(*names)
    for name in names:
        conn.notify(name, "y")
    assert pairs(conn.poll()) == [(name, "y") for name in names]


@pytest.mark.parametrize("name", ["x" * 64, "é" * 32, "\N{SNOWMAN}" * 22])
@pytest.mark.parametrize("method", ["listen", "unlisten", "notify"])
def test_channel_of_more_than_63_bytes(conn: pynotify.Connection, method: str, name: str) -> None:
    """E2: an error, also in LISTEN; never truncated as an identifier is (W1)."""
    with pytest.raises(pynotify.InvalidChannelName) as caught:
        getattr(conn, method)(name)
    assert str(caught.value).splitlines()[0].startswith("channel name too long")
    assert caught.value.sqlstate == "22023"


@pytest.mark.parametrize("method", ["listen", "unlisten", "notify"])
def test_empty_channel(conn: pynotify.Connection, method: str) -> None:
    """E1."""
    with pytest.raises(pynotify.InvalidChannelName) as caught:
        getattr(conn, method)("")
    assert str(caught.value).startswith("channel name cannot be empty")
    assert caught.value.sqlstate == "22023"


@pytest.mark.parametrize("name", ["a\0b", "\0", "lone \ud800 surrogate"])
@pytest.mark.parametrize("method", ["listen", "unlisten", "notify"])
def test_channel_with_nul_or_unencodable(conn: pynotify.Connection, method: str, name: str) -> None:
    with pytest.raises(pynotify.InvalidChannelName):
        getattr(conn, method)(name)


@pytest.mark.parametrize("name", [None, b"bytes", 7, ["c"]])
@pytest.mark.parametrize("method", ["listen", "unlisten", "notify"])
def test_channel_is_a_str(conn: pynotify.Connection, method: str, name: object) -> None:
    """A channel is a `str`: a TypeError otherwise, and nothing happens."""
    with pytest.raises(TypeError):
        getattr(conn, method)(name)
    assert conn.listening_channels() == frozenset()


def test_channels_are_compared_byte_for_byte(conn: pynotify.Connection) -> None:
    """Never folded, never normalised, never truncated."""
    names = ["c1", "C1", "c1 ", '12+"34', "caf\u00e9", "cafe\u0301", "x" * 63, "x" * 62, "*", "%s"]
    conn.listen(*names)
    for name in names:
        conn.notify(name)
    assert pairs(conn.poll()) == [(name, "") for name in names]
    conn.unlisten("c1")
    assert conn.listening_channels() == set(names) - {"c1"}


def test_longer_channels_where_the_segment_allows_them(
    make_engine: EngineFactory, connect: Connect
) -> None:
    """`max_channel_name` may be raised to 255."""
    conn = connect(to=make_engine(max_channel_name=255))
    conn.listen("x" * 255)
    conn.notify("x" * 255, "y")
    assert pairs(conn.poll()) == [("x" * 255, "y")]
    with pytest.raises(pynotify.InvalidChannelName):
        conn.listen("x" * 256)


def test_databases_are_name_spaces(connect: Connect) -> None:
    """C1, and "notifications never cross it"."""
    here, there = connect(database="here"), connect(database="there")
    here.listen("c")
    there.listen("c")
    here.notify("c", "here")
    there.notify("c", "there")
    assert payloads(here.poll()) == ["here"]
    assert payloads(there.poll()) == ["there"]
    assert (here.database, there.database) == ("here", "there")


def test_many_channels(conn: pynotify.Connection) -> None:
    names = [f"channel {number}" for number in range(1000)]
    conn.listen(*names)
    assert conn.listening_channels() == set(names)
    with conn.transaction():
        for name in names:
            conn.notify(name)
    assert [message.channel for message in conn.poll()] == names
    conn.unlisten(*names[:999])
    assert conn.listening_channels() == {names[999]}
