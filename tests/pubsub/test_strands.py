"""What a strand takes is what any inbox with its state would take, but it hands nothing out."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pynotify import Gap, Notify
from pynotify._inbox import Inbox
from pynotify.pubsub._strands import _PartStream, _Stream

_STATES = {
    "began": [None, 0, 5],
    "added": [{}, {"c": 5}, {"d": 5}],
    "skipped": [None, 0, 1],
    "closed": [False, True],
    "waits": [False, True],
}


class _Waiter:
    message: Notify | Gap | None = None
    woken = False

    def wake(self) -> None:
        self.woken = True


def _described(inbox: Inbox, waiter: _Waiter) -> dict[str, Any]:
    handed = [] if waiter.message is None else [waiter.message]
    return {
        "messages": [*handed, *inbox.messages],
        "held": inbox.held + len(handed),
        "latest": inbox._latest,
        "waits": (waiter.woken, len(inbox.waiters)),
        "left": (inbox._since, inbox._added),
    }


def _put(make: type[Inbox], state: dict[str, Any], messages: list[Notify]) -> dict[str, Any]:
    skipped = state["skipped"]
    if make is _PartStream:
        root = _Stream(None)
        guard = SimpleNamespace(pending=False)
        inbox: Inbox = _PartStream(root, skipped, cast("Any", guard))
    else:
        inbox = Inbox(None, "drop-oldest", skipped)
    inbox.keys = ("c", "d")
    inbox._since, inbox._added = state["began"], dict(state["added"])
    inbox.closed = state["closed"]
    waiter = _Waiter()
    if state["waits"]:
        inbox.waiters.append(waiter)
    for message in messages:
        inbox.put(message)
        if make is _PartStream:
            assert waiter.message is None
            assert guard.pending == bool(inbox.messages), "an array is held until it is looked for"
    return _described(inbox, waiter)


@pytest.mark.parametrize(
    "state",
    [dict(zip(_STATES, values, strict=True)) for values in itertools.product(*_STATES.values())],
    ids=str,
)
def test_a_strand_takes_what_an_inbox_takes(state: dict[str, Any]) -> None:
    kinds = itertools.product("cd", (3, 7), (0, 1))
    messages = [Notify(name, b"x", 1, seq=seq, sender=sender) for name, seq, sender in kinds]
    twice = [message for message in messages for _ in range(2)]  # put again: interrupted
    assert _put(_PartStream, state, twice) == _put(Inbox, state, twice)


def test_a_gap_is_not_a_strands() -> None:
    root = _Stream(None)
    strand = _PartStream(root, None, cast("Any", SimpleNamespace(pending=False)))
    strand.open(0)
    strand.put(Gap(1, "lag"))
    assert not root.messages
