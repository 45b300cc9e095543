"""PostgreSQL's regression test of LISTEN and NOTIFY, `async.sql`, statement by statement."""

from __future__ import annotations

import pytest

import pynotify
from sessions import Sessions

TOO_LONG = "notify_async_channel_name_too_long______________________________"
assert len(TOO_LONG) == 64


def test_t_reg_1_notify_with_payload(sessions: Sessions) -> None:
    """T-REG-1: `pg_notify('notify_async1', 'sample message1')`."""
    (session,) = sessions(1)
    assert session.notify("notify_async1", "sample message1") is None


def test_t_reg_2_notify_with_empty_payload(sessions: Sessions) -> None:
    """T-REG-2: `pg_notify('notify_async1', '')`."""
    (session,) = sessions(1)
    assert session.notify("notify_async1", "") is None


def test_t_reg_3_notify_without_payload(sessions: Sessions) -> None:
    """T-REG-3: SQL's NULL payload is the omitted one here; None is a mistake."""
    (session,) = sessions(1)
    assert session.notify("notify_async1") is None
    with pytest.raises(TypeError):
        session.notify("notify_async1", None)


def test_t_reg_4_empty_channel(sessions: Sessions) -> None:
    """T-REG-4: `pg_notify('', 'sample message1')`."""
    (session,) = sessions(1)
    with pytest.raises(pynotify.InvalidChannelName, match=r"^channel name cannot be empty"):
        session.notify("", "sample message1")


def test_t_reg_5_no_channel(sessions: Sessions) -> None:
    """T-REG-5: SQL's NULL channel fails there as an empty one; None is a mistake here."""
    (session,) = sessions(1)
    with pytest.raises(TypeError):
        session.notify(None, "sample message1")


def test_t_reg_6_channel_one_byte_too_long(sessions: Sessions) -> None:
    """T-REG-6."""
    (session,) = sessions(1)
    with pytest.raises(pynotify.InvalidChannelName, match=r"^channel name too long"):
        session.notify(TOO_LONG, "sample_message1")
    session.notify(TOO_LONG[:-1], "sample_message1")


def test_t_reg_7_to_10_commands_run_silently(sessions: Sessions) -> None:
    """T-REG-7, T-REG-8, T-REG-9, T-REG-10: NOTIFY, LISTEN, UNLISTEN, UNLISTEN *."""
    (session,) = sessions(1)
    assert session.notify("notify_async2") is None
    assert session.listen("notify_async2") is None
    assert session.unlisten("notify_async2") is None
    assert session.unlisten_all() is None
    assert session.heard() == []


def test_t_reg_11_usage_is_zero(sessions: Sessions) -> None:
    """T-REG-11: `pg_notification_queue_usage()` is 0 again."""
    (session,) = sessions(1)
    session.notify("notify_async2")
    assert session.queue_usage() == 0
