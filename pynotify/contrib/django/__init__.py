"""Django: notify when, and only when, the transaction of the database commits.

```
from pynotify.contrib.django import notify

with transaction.atomic():
    order.save()
    notify("orders", order.pk)  # sent when the transaction commits, never when it does not
```

`INSTALLED_APPS = [..., "pynotify.contrib.django"]` adds the command `pynotify_listen`; the setting
`PYNOTIFY_SEGMENT` ("default") names the segment, `PYNOTIFY_OPTIONS` has what `pynotify.connect`
takes besides.  The cache backend is `pynotify.contrib.django.cache.GenerationCache`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from pynotify._connect import connect
from pynotify.contrib._own import PerProcess
from pynotify.errors import ProgrammingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynotify._connection import Connection

__all__ = ["connection", "notify", "transaction"]


def _connect() -> Connection:
    from django.conf import settings  # noqa: PLC0415 - this module is imported before them

    options = dict(getattr(settings, "PYNOTIFY_OPTIONS", {}))
    return connect(getattr(settings, "PYNOTIFY_SEGMENT", "default"), **options)


_own = PerProcess(_connect, lambda made: not made.closed, lambda made: made)


def connection() -> Connection:
    """The connection of this process that the functions here use; made when there is none.

    It is theirs alone: a transaction that the program opens on `pynotify.get()` does not meet it.
    """
    return _own.get()


class _Pending:
    """A notification that waits for the commit."""

    __slots__ = ("channel", "hooks", "payload", "sent")

    def __init__(self, channel: str, payload: str | bytes) -> None:
        self.channel, self.payload = channel, payload
        self.sent = False
        #: The database's list of what it calls, which it replaces when a savepoint is undone.
        self.hooks: list[Any] = []

    def send(self) -> None:
        """What the database calls."""
        if not self.sent:
            _send([self, *_behind(self)])


def _pending_in(hooks: list[Any]) -> list[_Pending]:
    owners = [getattr(hook[1], "__self__", None) for hook in hooks]
    return [each for each in owners if isinstance(each, _Pending) and not each.sent]


def _behind(first: _Pending) -> list[_Pending]:
    """What commits together with `first`, so that all of it is one transaction.

    The database takes its hooks off the list while it calls them.  A list in which the first one
    still stands is an earlier one, from which those of an undone savepoint were not taken.
    """
    waiting = _pending_in(first.hooks)
    return [] if first in waiting else waiting


def _send(notifications: list[_Pending]) -> None:
    for each in notifications:
        each.sent = True
    own = connection()
    with own.transaction():
        for each in notifications:
            own.notify(each.channel, each.payload)


def notify(
    channel: str, payload: object = "", *, using: str | None = None, robust: bool = True
) -> None:
    """Notify when the database's transaction commits; outside of one, at once.

    `payload`: bytes, or else what `str()` makes of it.  `using`: the alias of the database.
    Notifications of a transaction are one transaction here as well, in their order and without
    duplicates; those of an `atomic` block that is undone are never sent.  The database has
    committed by then: with `robust`, what cannot be sent (`QueueFull`) is logged, else it raises.
    """
    from django.db import transaction as database  # noqa: PLC0415

    data = payload if isinstance(payload, bytes) else str(payload)
    database.on_commit(_Pending(channel, data).send, using=using, robust=robust)
    _note_list(database.get_connection(using).run_on_commit)


def _note_list(hooks: list[Any]) -> None:
    for each in _pending_in(hooks):
        each.hooks = hooks


@contextlib.contextmanager
def transaction(using: str | None = None) -> Iterator[None]:
    """`django.db.transaction.atomic`, of which the rows and the notifications commit, or neither.

    What the notifications need is reserved before the database commits (`prepare()`): a full queue
    raises `QueueFull` and undoes the rows.  Only as the outermost block (`ProgrammingError`).
    """
    from django.db import transaction as database  # noqa: PLC0415

    rows = database.get_connection(using)
    if rows.in_atomic_block:
        raise ProgrammingError(
            "transaction() of pynotify.contrib.django is inside of an atomic block",
            hint="Use it as the outermost block, or call notify() in the block that there is.",
        )
    own = connection()
    with own.transaction() as prepared, database.atomic(using=using):
        yield
        for each in _pending_in(rows.run_on_commit):
            each.sent = True
            own.notify(each.channel, each.payload)
        prepared.prepare()
