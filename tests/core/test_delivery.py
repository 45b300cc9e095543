"""What is delivered, in which order and when: O1, O2, T1 to T4, T6, and the commit numbers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pynotify
from receiving import PATIENCE, pairs, payloads, readable, receive, wait_until
from sessions import Connect, Sessions


def test_order_within_a_transaction(sessions: Sessions) -> None:
    """O1: the order sent."""
    listener, notifier = sessions(2)
    listener.listen("c", "d")
    notifier.begin()
    sent = [("c" if number % 3 else "d", str(number)) for number in range(100)]
    for channel, payload in sent:
        notifier.notify(channel, payload)
    notifier.commit()
    assert listener.heard() == sent


def test_order_across_transactions_is_commit_order(sessions: Sessions) -> None:
    """O2: the same order for every listener."""
    one, two, first, second = sessions(4)
    one.listen("c")
    two.listen("c")
    expected = []
    for number in range(20):
        first.begin()
        first.notify("c", f"first {number}")
        second.notify("c", f"second {number}")
        first.commit()
        expected += [("c", f"second {number}"), ("c", f"first {number}")]
    assert one.heard() == expected
    assert two.heard() == expected


def test_concurrent_commits_have_one_order(connect: Connect) -> None:
    """O2: all listeners see the same interleaving of four notifiers."""
    listeners = [connect() for _ in range(3)]
    for listener in listeners:
        listener.listen("c")
    start = threading.Barrier(4)

    def notify(conn: pynotify.Connection, name: int) -> None:
        start.wait()
        for number in range(200):
            with conn.transaction():
                conn.notify("c", f"{name}.{number}.a")
                conn.notify("c", f"{name}.{number}.b")

    threads = [threading.Thread(target=notify, args=(connect(), name)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    heard = [listener.poll() for listener in listeners]
    assert len(heard[0]) == 1600
    assert all(other == heard[0] for other in heard[1:])
    assert [m.seq for m in heard[0]] == [m.seq for m in heard[1]]
    for name in range(4):
        mine = [m.payload for m in heard[0] if m.payload.startswith(f"{name}.")]
        assert mine == [f"{name}.{number}.{part}" for number in range(200) for part in "ab"]
    for first, second in zip(heard[0][::2], heard[0][1::2], strict=True):
        assert first.seq == second.seq, "a transaction was torn apart"


def test_seq_is_one_number_per_commit_common_to_all_databases(connect: Connect) -> None:
    """O2, "including across databases, as there is one queue"."""
    a, b = connect(database="a"), connect(database="b")
    a.listen("c")
    b.listen("c")
    seqs = []
    for number in range(5):
        a.notify_many("c", [f"{number}.1", f"{number}.2"])
        b.notify("c", "x")
        (one, same), (two,) = a.poll(), b.poll()
        assert one.seq == same.seq
        seqs += [one.seq, two.seq]
    assert seqs == sorted(set(seqs))


def test_sent_ns_follows_commit_order(conn: pynotify.Connection) -> None:
    conn.listen("c")
    for number in range(100):
        conn.notify("c", str(number))
    stamps = [message.sent_ns for message in conn.poll()]
    assert stamps == sorted(stamps)


def test_idle_session_is_woken_at_once(sessions: Sessions, connect: Connect) -> None:
    """T1: signal, latch, delivery."""
    (notifier,) = sessions(1)
    listener = connect()
    listener.listen("c")
    woken: list[str] = []
    thread = threading.Thread(target=lambda: woken.extend(_echo(listener, 50)))
    thread.start()
    for number in range(50):
        notifier.notify("c", str(number))
        wait_until(lambda seen=number + 1: len(woken) == seen, f"message {number} was heard")
    thread.join(PATIENCE)
    assert woken == [str(number) for number in range(50)]


def _echo(listener: pynotify.Connection, count: int) -> Iterator[str]:
    while count:
        for message in receive(listener, 1):
            yield message.payload
            count -= 1


def test_nothing_is_delivered_inside_a_transaction(sessions: Sessions) -> None:
    """T2: only just after the block ends."""
    listener, notifier = sessions(2)
    listener.listen("c")
    listener.begin()
    notifier.notify("c", "x")
    assert listener.heard() == []
    listener.commit()
    assert listener.heard() == [("c", "x")]


def test_delivery_after_a_rolled_back_or_failed_transaction(sessions: Sessions) -> None:
    """T2: whether the block is committed, aborted or had failed."""
    listener, notifier = sessions(2)
    listener.listen("c")
    for number in range(2):
        listener.begin()
        notifier.notify("c", str(number))
        if number:
            with contextlib.suppress(pynotify.InvalidChannelName):
                listener.notify("")
        assert listener.heard() == []
        listener.rollback()
        assert listener.heard() == [("c", str(number))]


def test_descriptor_tells_after_the_transaction(
    conn: pynotify.Connection, connect: Connect
) -> None:
    """T2 for a loop that watches the fd: what came makes it readable when the block ends."""
    conn.listen("c")
    conn.begin()
    connect().notify("c", "x")
    assert conn.poll() == []
    conn.commit()
    assert readable(conn.fileno(), PATIENCE)
    assert payloads(conn.poll()) == ["x"]
    assert not readable(conn.fileno())


def test_self_notifies_follow_the_same_path(conn: pynotify.Connection) -> None:
    """T3: delivered when idle; the sender's pid lets one filter them."""
    conn.listen("c")
    conn.begin()
    conn.notify("c", "x")
    conn.savepoint("s")
    assert conn.poll() == []
    conn.commit()
    assert readable(conn.fileno(), PATIENCE)
    (message,) = conn.poll()
    assert (message.pid, message.backend_id) == (conn.pid, conn.backend_id)


def test_self_notify_keeps_its_place_among_the_others(
    conn: pynotify.Connection, connect: Connect
) -> None:
    """T3, O2: filtering self-notifies by pid never loses the others."""
    other = connect()
    conn.listen("c")
    for number in range(10):
        (conn if number % 2 else other).notify("c", str(number))
    assert payloads(conn.poll()) == [str(number) for number in range(10)]


def test_listener_reads_everything_in_one_pass(sessions: Sessions) -> None:
    """T4: from its position to the head."""
    listener, notifier = sessions(2)
    listener.listen("c")
    for _ in range(3):
        assert notifier.notify_many("c", [str(number) for number in range(2000)]) == 2000
        assert listener.heard() == [("c", str(number)) for number in range(2000)]


def test_one_wake_up_is_outstanding_per_listener(
    engine: pynotify.Engine, conn: pynotify.Connection, connect: Connect
) -> None:
    """T6: a burst costs one signal."""
    listener = connect()
    listener.listen("c")
    assert not listener.wait(0)
    before = engine.stat()
    began = time.monotonic()
    count = 0
    while count < 2000 and time.monotonic() - began < 0.005:
        conn.notify("c", str(count))
        count += 1
    after = engine.stat()
    assert count > 1
    # An awake listener whose signal seems lost, being older than 10 ms, may be signalled again.
    assert after.signals_sent - before.signals_sent <= 2
    assert after.signals_elided - before.signals_elided >= count - 2
    assert payloads(listener.poll()) == [str(number) for number in range(count)]


def test_a_message_is_returned_once(conn: pynotify.Connection) -> None:
    conn.listen("c")
    conn.notify("c", "x")
    assert payloads(conn.poll()) == ["x"]
    assert conn.poll() == []
    assert list(conn.notifies(timeout=0)) == []
    assert len(conn.poll_batch()) == 0


def test_databases_never_mix(connect: Connect) -> None:
    """Many databases on one queue, each hears its own."""
    names = [f"db{number}" for number in range(10)]
    conns = {name: connect(database=name) for name in names}
    for conn in conns.values():
        conn.listen("c")
    for number in range(20):
        for name, conn in conns.items():
            conn.notify("c", f"{name}.{number}")
    for name, conn in conns.items():
        assert payloads(conn.poll()) == [f"{name}.{number}" for number in range(20)]


def test_listener_that_never_polled_is_woken_through_its_descriptor(
    engine: pynotify.Engine, conn: pynotify.Connection, connect: Connect
) -> None:
    """A committed LISTEN leaves the slot asleep and armed, and it pins nothing until then."""
    listener = connect()
    listener.listen("rare")
    (row,) = (b for b in engine.stat().backends if b.backend_id == listener.backend_id)
    assert row.asleep
    assert row.lag_bytes == 0
    hearer = connect()
    hearer.listen("frequent")
    for _ in range(1200):
        conn.notify("frequent", "x" * 7990)
        assert len(hearer.poll()) == 1
    assert not readable(listener.fileno()), "woken for what it does not listen to"
    conn.notify("rare", "at last")
    assert readable(listener.fileno(), PATIENCE)
    assert pairs(listener.poll()) == [("rare", "at last")]


def test_poll_returns_everything_committed_before_it(connect: Connect) -> None:
    """All that was "committed before it was called": no signal is needed."""
    listener, notifier = connect(), connect()
    listener.listen("c")
    for number in range(500):
        notifier.notify("c", str(number))
        assert payloads(listener.poll()) == [str(number)]
