"""Sending: in the caller's transaction, or outside of one, committed at once.

A send that waits for room outside of a transaction is made in one instead, which keeps its place
while Python's signal handlers run.
"""

from __future__ import annotations

import errno

from pynotify._encoding import (
    channel_cache,
    encode_channel,
    encode_headers,
    encode_payload,
    join_payloads,
)
from pynotify._ffi import again, ffi, lib
from pynotify._notify_in import NotifyIn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol

    from typing_extensions import Buffer

    from pynotify._encoding import Payloads
    from pynotify._handle import Handle
    from pynotify._transaction import OpenTransaction

    class Transactions(Protocol):
        """The open transactions of a connection, as far as sending needs them."""

        @property
        def by_owner(self) -> Mapping[Any, OpenTransaction]:
            """By thread or task."""

        def owner(self) -> Any:
            """The calling one."""

        def on_its_own(self, action: Callable[[OpenTransaction], None]) -> None:
            """Do it in a transaction of its own."""


# A global, because looking an attribute up on the extension module costs as much as a branch.
_pn_notify_cstr = lib.pn_notify_cstr
_EINTR = -errno.EINTR


class Sender:
    """What a connection sends."""

    __slots__ = ("_handle", "_transactions")

    def __init__(self, handle: Handle, transactions: Transactions) -> None:
        self._handle = handle
        self._transactions = transactions

    def notify(
        self, channel: str, payload: str | Buffer, headers: Mapping[str, str] | None = None
    ) -> None:
        """NOTIFY.  Outside of a transaction it may be repeated."""
        if headers:
            self._notify_with(channel, payload, headers)
            return
        transactions = self._transactions
        if transactions.by_owner:
            transaction = transactions.by_owner.get(transactions.owner())
            if transaction is not None:
                transaction.notify(channel, payload)
                return
        try:
            name = channel_cache[channel] if type(channel) is str else encode_channel(channel)
        except KeyError:
            name = encode_channel(channel)
        data = payload if type(payload) is bytes else encode_payload(payload)
        result = _pn_notify_cstr(self._handle.native, name, data, len(data))
        if result:
            self.went(result, channel, data)

    def _notify_with(self, channel: str, payload: str | Buffer, headers: Mapping[str, str]) -> None:
        transaction = self._transactions.by_owner.get(self._transactions.owner())
        if transaction is None:
            self.notify_many(channel, (payload,), dedup=True, headers=headers)
        else:
            transaction.notify_many(channel, (payload,), dedup=True, headers=headers)

    def went(self, result: int, channel: str, data: bytes) -> None:
        """Act on what pn_notify_cstr() returned, when that is not 0."""
        if result == _EINTR:
            self._transactions.on_its_own(lambda transaction: transaction.notify(channel, data))
        else:
            self._handle.check(result)

    def notify_many(
        self,
        channel: str,
        payloads: Payloads,
        *,
        dedup: bool,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """NOTIFY any number of payloads, in a transaction of their own.  May be repeated."""
        name = encode_channel(channel)
        sent = NotifyIn(name, *join_payloads(payloads), encode_headers(headers), dedup=dedup)
        queued = ffi.new("uint64_t *")
        result = lib.pn_notify_headers(self._handle.native, ffi.NULL, sent.native, queued)
        if result != _EINTR:
            self._handle.check(result)
            return int(queued[0])
        left: list[int] = []
        self._transactions.on_its_own(lambda transaction: left.append(transaction.notify_in(sent)))
        return left[0]

    def notify_counted(
        self, channel: str, payload: str | Buffer, headers: Mapping[str, str] | None
    ) -> int:
        """NOTIFY, in a transaction of its own; how many connections hear it.  May be repeated."""
        counted: list[OpenTransaction] = []

        def send(transaction: OpenTransaction) -> None:
            counted[:] = [transaction]
            transaction.count_listeners()
            transaction.notify_many(channel, (payload,), dedup=True, headers=headers)

        self._transactions.on_its_own(send)
        return counted[0].listeners or 0

    def queue_usage(self) -> float:
        """How full the queue is.  May be repeated."""
        handle = self._handle
        handle.check_usable()
        out = ffi.new("double *")
        handle.check(again(lambda: lib.pn_queue_usage(handle.engine(), out)))
        return float(out[0])
