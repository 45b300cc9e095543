"""PostgreSQL's isolation tests of LISTEN and NOTIFY: its 13 permutations, step by step.

Each with all sessions in one process and with every session a process of its own.  The text of
a session there is one simple Query and so one transaction; the steps below are named after them.
"""

from __future__ import annotations

from collections.abc import Callable

import pynotify
from sessions import Session, Sessions


def in_one_transaction(session: Session, *steps: Callable[[], object]) -> None:
    session.begin()
    for step in steps:
        step()
    session.commit()


class Notifier:
    """The session `notifier`."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def listenc(self) -> None:
        self.session.listen("c1", "c2")

    def notify1(self) -> None:
        self.session.notify("c1")

    def notify2(self) -> None:
        self.session.notify("c2", "payload")

    def notify3(self) -> None:
        self.session.notify("c3", "payload3")  # c3 has no listener

    def notifyf(self) -> None:
        """`pg_notify('c2', NULL)`: its NULL means '', which is what an omitted payload is."""
        self.session.notify("c2")

    def notifyd1(self) -> None:
        session = self.session
        session.begin()
        session.notify("c2", "payload")
        session.notify("c1")
        session.notify("c2", "payload")
        session.commit()

    def notifyd2(self) -> None:
        session = self.session
        session.begin()
        for payload in ("", "", "p1", "p2"):
            session.notify("c1", payload)
        session.commit()

    def both(self, payload: str) -> None:
        self.session.notify("c1", payload)
        self.session.notify("c2", payload)

    def notifys1(self) -> None:
        session = self.session
        session.begin()
        for payload in ("payload", "payload"):
            self.both(payload)
        session.savepoint("s1")
        for payload in ("payload", "payloads", "payload", "payloads"):
            self.both(payload)
        session.release("s1")
        session.savepoint("s2")
        for payload in ("rpayload", "rpayloads", "rpayload", "rpayloads"):
            self.both(payload)
        session.rollback_to("s2")
        session.commit()

    def notifys_simple(self) -> None:
        session = self.session
        session.begin()
        session.savepoint("s1")
        session.notify("c1", "simple1")
        session.notify("c2", "simple2")
        session.release("s1")
        session.commit()

    def notify_many_with_dup(self) -> None:
        session = self.session
        session.begin()
        for number in range(1, 18):
            session.notify("c1", f"msg{number}")
        session.notify("c1", "msg1")
        session.commit()

    def bignotify(self) -> None:
        """One statement and so one transaction, as in PostgreSQL."""
        assert self.session.notify_many("c1", [str(number) for number in range(1, 1001)]) == 1000


def test_t_iso_1_self_notify(sessions: Sessions) -> None:
    """T-ISO-1: listenc notify1 notify2 notify3 notifyf."""
    (session,) = sessions(1)
    notifier = Notifier(session)
    notifier.listenc()
    for step, heard in [
        (notifier.notify1, [("c1", "")]),
        (notifier.notify2, [("c2", "payload")]),
        (notifier.notify3, []),
        (notifier.notifyf, [("c2", "")]),
    ]:
        step()
        assert session.heard() == heard


def test_t_iso_2_duplicates(sessions: Sessions) -> None:
    """T-ISO-2: listenc notifyd1 notifyd2 notifys1."""
    (session,) = sessions(1)
    notifier = Notifier(session)
    notifier.listenc()
    notifier.notifyd1()
    assert session.heard() == [("c2", "payload"), ("c1", "")]
    notifier.notifyd2()
    assert session.heard() == [("c1", ""), ("c1", "p1"), ("c1", "p2")]
    notifier.notifys1()
    assert session.heard() == [
        ("c1", "payload"),
        ("c2", "payload"),
        ("c1", "payloads"),
        ("c2", "payloads"),
    ]


def test_t_iso_3_notify_in_a_savepoint_when_the_parent_has_none(sessions: Sessions) -> None:
    """T-ISO-3: listenc notifys_simple."""
    (session,) = sessions(1)
    notifier = Notifier(session)
    notifier.listenc()
    notifier.notifys_simple()
    assert session.heard() == [("c1", "simple1"), ("c2", "simple2")]


def test_t_iso_4_listen_in_a_released_savepoint(sessions: Sessions) -> None:
    """T-ISO-4: lsbegin lssavepoint lslisten lsrelease lscommit lsnotify."""
    (session,) = sessions(1)
    session.begin()
    session.savepoint("s1")
    session.listen("c1", "c2")
    session.release("s1")
    session.commit()
    session.notify("c1", "subxact_test")
    assert session.heard() == [("c1", "subxact_test")]


def test_t_iso_5_listen_inside_and_outside_of_a_savepoint(sessions: Sessions) -> None:
    """T-ISO-5: lsbegin lslisten_outer lssavepoint lslisten lsrelease lscommit lsnotify."""
    (session,) = sessions(1)
    session.begin()
    session.listen("c3")
    session.savepoint("s1")
    session.listen("c1", "c2")
    session.release("s1")
    session.commit()
    assert session.listening_channels() == {"c1", "c2", "c3"}
    session.notify("c1", "subxact_test")
    assert session.heard() == [("c1", "subxact_test")]


def test_t_iso_6_listen_in_a_savepoint_that_is_rolled_back(sessions: Sessions) -> None:
    """T-ISO-6: lsbegin lssavepoint lslisten lsrollback lscommit lsnotify_check."""
    (session,) = sessions(1)
    session.begin()
    session.savepoint("s1")
    session.listen("c1", "c2")
    session.rollback_to("s1")
    session.commit()
    session.notify("c1", "should_not_receive")
    assert session.heard() == []


def test_t_iso_7_unlisten_all_cancels_a_listen(sessions: Sessions) -> None:
    """T-ISO-7: lunlisten_all notify1 lcheck."""
    session, listener = sessions(2)
    notifier = Notifier(session)
    in_one_transaction(listener, lambda: listener.listen("c1"), listener.unlisten_all)
    notifier.notify1()
    assert listener.heard() == []


def test_t_iso_8_duplicate_found_by_hash(sessions: Sessions) -> None:
    """T-ISO-8: listenc notify_many_with_dup."""
    (session,) = sessions(1)
    notifier = Notifier(session)
    notifier.listenc()
    notifier.notify_many_with_dup()
    assert session.heard() == [("c1", f"msg{number}") for number in range(1, 18)]


def notify_one_to_f(notifier: Notifier) -> None:
    for step in (notifier.notify1, notifier.notify2, notifier.notify3, notifier.notifyf):
        step()


def test_t_iso_9_across_sessions(sessions: Sessions) -> None:
    """T-ISO-9: llisten notify1 notify2 notify3 notifyf lcheck."""
    session, listener = sessions(2)
    listener.listen("c1", "c2")
    notify_one_to_f(Notifier(session))
    assert [message[:4] for message in listener.poll()] == [
        ("c1", "", session.pid, session.backend_id),
        ("c2", "payload", session.pid, session.backend_id),
        ("c2", "", session.pid, session.backend_id),
    ]


def test_t_iso_10_here_and_across_sessions(sessions: Sessions) -> None:
    """T-ISO-10: listenc llisten notify1 notify2 notify3 notifyf lcheck."""
    session, listener = sessions(2)
    notifier = Notifier(session)
    notifier.listenc()
    listener.listen("c1", "c2")
    notify_one_to_f(notifier)
    expected = [("c1", ""), ("c2", "payload"), ("c2", "")]
    assert session.heard() == expected
    assert listener.heard() == expected


def test_t_iso_11_first_listen_with_a_queue_that_is_not_empty(sessions: Sessions) -> None:
    """T-ISO-11: l2listen l2begin notify1 lbegins llisten lcommit l2commit l2stop."""
    session, listener, listener2 = sessions(3)
    listener2.listen("c1")
    listener2.begin()
    Notifier(session).notify1()
    listener.begin()
    listener.listen("c1", "c2")
    listener.commit()
    assert listener2.heard() == []
    listener2.commit()
    assert listener2.heard() == [("c1", "")]
    assert listener.heard() == []
    listener2.unlisten_all()
    assert listener2.listening_channels() == frozenset()


def test_t_iso_12_notifier_that_never_listened(sessions: Sessions) -> None:
    """T-ISO-12: lch_listen nch_notify lch_check."""
    listener, notifier = sessions(2)
    listener.listen("ch")
    notifier.notify("ch", "aa")
    (message,) = listener.poll()
    assert message[:4] == ("ch", "aa", notifier.pid, notifier.backend_id)


def test_t_iso_13_queue_usage(sessions: Sessions, engine: pynotify.Engine) -> None:
    """T-ISO-13: llisten lbegin usage bignotify usage."""
    session, listener = sessions(2)
    listener.listen("c1", "c2")
    listener.begin()
    assert session.queue_usage() == 0
    Notifier(session).bignotify()
    assert session.queue_usage() > 0
    listener.rollback()
    assert listener.heard() == [("c1", str(number)) for number in range(1, 1001)]
    assert session.queue_usage() == 0
