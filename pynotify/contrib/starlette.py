"""Starlette and FastAPI: broadcast to the WebSocket and SSE clients of all workers.

```
broadcast = Broadcast("app")
app = FastAPI(lifespan=broadcast.lifespan)

@app.websocket("/chat/{room}")
async def chat(websocket: WebSocket, room: str) -> None:
    await broadcast.websocket(websocket, room)

@app.get("/events/{room}")
async def events(request: Request, room: str) -> Response:
    return broadcast.events(request, room)

@app.post("/say/{room}")
async def say(room: str, text: str) -> None:
    await broadcast.publish(room, text)
```
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import StreamingResponse
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from pynotify._log import logger
from pynotify._segments import check_name
from pynotify._types import Gap
from pynotify.contrib._lasting import Lasting
from pynotify.contrib._names import connect_async_preferring, fitting, limit_of
from pynotify.contrib._whole import Whole
from pynotify.errors import Error, InterfaceError, SegmentUnlinked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from typing import Self, Unpack

    from starlette.requests import Request

    from pynotify._async_connection import AsyncConnection
    from pynotify._open_options import OpenOptions

__all__ = ["Broadcast", "Member", "Message"]

_CHANNEL = "broadcast"
_PRESENT = "present"
_HISTORY = "history"
_LENGTH = 6
_TOPIC = re.compile(r"[.a-zA-Z0-9_-]{1,64}")


class Message(NamedTuple):
    """What was published: in which group, under which id, and a str, bytes or anything JSON."""

    group: str
    id: str
    data: Any

    def text(self) -> str:
        """The data as text: a str as it is, bytes as UTF-8, else JSON."""
        if isinstance(self.data, bytes):
            return self.data.decode("utf-8", "replace")
        return self.data if isinstance(self.data, str) else json.dumps(self.data)


def _pack(message: Message) -> bytes:
    data, kind = message.data, "json"
    if isinstance(data, str):
        body, kind = data.encode(), "text"
    elif isinstance(data, (bytes, bytearray, memoryview)):
        body, kind = bytes(data), "bytes"
    else:
        body = json.dumps(data).encode()
    head = json.dumps([message.group, message.id, kind]).encode()
    return b"%0*d%s%s" % (_LENGTH, len(head), head, body)


#: Without what json.loads() does to find out in which encoding bytes are.
_decode = json.JSONDecoder().raw_decode


def _unpack(packed: bytes) -> Message:
    end = _LENGTH + int(packed[:_LENGTH])
    (group, id_, kind), _ = _decode(packed[_LENGTH:end].decode())
    body = packed[end:]
    if kind == "bytes":
        return Message(group, id_, body)
    return Message(group, id_, body.decode() if kind == "text" else json.loads(body))


class Member:
    """One client, made by `Broadcast.join`: iterating gives each `Message`, and a `Gap` where it
    was too slow.  It belongs to its groups from `async with` on, and until that ends."""

    def __init__(
        self,
        broadcast: Broadcast,
        groups: tuple[str, ...],
        identity: str | None,
        last_id: str | None,
    ) -> None:
        if not groups:
            raise TypeError("a member needs at least one group")
        self._broadcast = broadcast
        self.groups, self.identity = tuple(dict.fromkeys(groups)), identity
        self._last_id = last_id
        self._messages: deque[Message | Gap] = deque()
        self._missed = self._missed_bytes = 0
        #: Tasks in `next`, the one that has waited longest first.
        self._waiters: deque[asyncio.Future[None]] = deque()
        #: Kept, since asking for the running one is a system call in Python before 3.12.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left = False
        #: Set by the broadcast: what it is present as, and whether it counts.
        self.names: tuple[str, ...] = ()
        self.admitted = False

    async def next(self) -> Message | Gap:
        """The next message; a `Gap` where some were dropped.  Cancelling it loses nothing.

        Several tasks may wait: each message comes to one of them.
        """
        while not self._messages and not self._missed:
            if self._left:
                raise InterfaceError("the member has left its groups", hint="Join again.")
            waiter = (self._loop or asyncio.get_running_loop()).create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except BaseException:
                self._pass_on()  # it was woken, perhaps, for a message that it does not take
                raise
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        if self._missed:
            gap = Gap(self._missed_bytes, Gap.OVERFLOW, self._missed)
            self._missed = self._missed_bytes = 0
            return gap
        return self._messages.popleft()

    def put(self, message: Message | Gap, size: int, maxlen: int) -> None:
        """Keep it, and drop the oldest of more than `maxlen`; the broadcast calls it."""
        if len(self._messages) >= maxlen:
            self._messages.popleft()
            self._missed += 1
            self._missed_bytes += size
        self._messages.append(message)
        self._wake()

    def replay(self, messages: Iterable[Message | Gap]) -> None:
        """Put what has not come yet first; the broadcast calls it, when all has that is in there
        and was published since the member joined."""
        come = {each.id for each in self._messages if isinstance(each, Message)}
        earlier = [each for each in messages if isinstance(each, Gap) or each.id not in come]
        self._messages.extendleft(reversed(earlier))
        self._wake_all()

    def end(self) -> None:
        """Let iterating end, after what has come; the broadcast calls it."""
        self._left = True
        self._wake_all()

    def _wake(self) -> None:
        """One task, which takes the message that was put."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _wake_all(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def _pass_on(self) -> None:
        if self._messages or self._missed or self._left:
            self._wake()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        try:
            await self._broadcast.admit(self, self._last_id)
        except BaseException:  # or it would be there for ever
            self.end()
            await self._broadcast.dismiss(self)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end()
        await self._broadcast.dismiss(self)

    def __aiter__(self) -> AsyncIterator[Message | Gap]:
        return self

    async def __anext__(self) -> Message | Gap:
        try:
            return await self.next()
        except InterfaceError:
            raise StopAsyncIteration from None


class Broadcast:
    """Groups of clients over all worker processes of a host.

    `segment` is its name; broadcasts that share it and `prefix` are one.  `maxlen`: how many
    messages are kept for a client that is too slow, beyond which the oldest are dropped and a `Gap`
    says how many.  `replay`: how many messages of each group are kept for clients that connect
    again, all workers together.  `wakeup` and `options` as for `pynotify.connect`.

    Each worker has one connection, opened by `lifespan` or `async with`.  Of a worker that is
    killed nothing stays: its clients are not present any more.
    """

    def __init__(
        self,
        segment: str = "default",
        *,
        prefix: str = "b",
        maxlen: int = 1024,
        replay: int = 0,
        wakeup: str | int | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        check_name(segment)
        if maxlen < 1 or replay < 0:
            raise ValueError(f"maxlen is at least 1 and replay 0, not {maxlen} and {replay}")
        self.segment, self.prefix, self.maxlen, self.replay = segment, prefix, maxlen, replay
        self._wakeup, self._options = wakeup, options
        self._lasting = Lasting("Broadcast", self._connect, self._prepare)
        self._whole: Whole | None = None
        #: One of a segment that was removed, of which members were told.
        self._lost: Whole | None = None
        #: Members are let go; a cancelled caller does not wait for it.
        self._dismissing: set[asyncio.Task[None]] = set()
        self._limit = 0
        self._watching: asyncio.Task[None]
        self._changing: asyncio.Lock
        #: Of each group whose channel is listened to.
        self._members: dict[str, set[Member]] = {}
        #: A message and its text, which is made once for all members.
        self._text_of: Message | None = None
        self._text = ""
        #: How many members here have an identity in a group.
        self._present: dict[str, int] = {}

    # ---- its life --------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: Any) -> AsyncIterator[None]:
        """Open in the worker until the application stops; for `Starlette(lifespan=...)`."""
        async with self:
            yield

    async def __aenter__(self) -> Self:
        if self._lasting.current is not None:
            raise InterfaceError("the Broadcast is open already", hint="Open it once in a process.")
        self._changing = asyncio.Lock()
        await self._lasting.open()
        self._watching = asyncio.create_task(self._watch())
        return self

    async def _connect(self) -> AsyncConnection:
        return await connect_async_preferring(self.segment, self._wakeup, **self._options)

    async def _prepare(self, connection: AsyncConnection) -> None:
        """Listen on a new connection to all that members need; they are told of what is missing."""
        async with self._changing:
            self._limit = self._limit or limit_of(connection)  # names stay what they are
            if self._whole is not self._lost:  # once, however often it tries
                self._lost = self._whole
                self._came(Gap(0, "reconnected"))
            whole = Whole(connection, self._came)
            for group in self._members:
                await whole.listen(self._channel(group))
            await connection.listen(*self._present)
            old, self._whole = self._whole, whole
            if old is not None:
                with contextlib.suppress(Error):
                    await old.close()

    async def __aexit__(self, *_: object) -> None:
        self._open()
        whole, self._whole = self._whole, None
        self._watching.cancel()
        await asyncio.wait([self._watching, *self._dismissing])
        for member in self._everyone():
            member.admitted = False  # what it would give back is gone
            member.end()
        self._members.clear()
        self._present.clear()
        try:
            if whole is not None:
                with contextlib.suppress(SegmentUnlinked):
                    await whole.close()
        finally:
            await self._lasting.close()

    def _open(self) -> AsyncConnection:
        if self._lasting.current is None or self._whole is None:
            raise InterfaceError(
                "the Broadcast is not open",
                hint="Give the application lifespan=broadcast.lifespan, or use 'async with'.",
            )
        return self._lasting.current

    def _listening(self) -> Whole:
        self._open()
        assert self._whole is not None
        return self._whole

    def _came(self, packed: bytes | Gap) -> None:
        if isinstance(packed, Gap):
            for member in self._everyone():
                member.put(packed, 0, self.maxlen)
            return
        message = _unpack(packed)
        for member in self._members.get(message.group, ()):
            member.put(message, len(packed), self.maxlen)

    def _everyone(self) -> set[Member]:
        return {each for members in self._members.values() for each in members}

    async def _watch(self) -> None:
        try:
            while True:
                connection, whole = self._open(), self._listening()
                try:
                    await whole.run()
                except Error:
                    if not self._lasting.is_lost(connection):
                        raise
                    await self._lasting.wait_for_another(connection)
        except Exception as error:
            logger.error("Broadcast: it does not listen any more: %s", error)
            for member in self._everyone():
                member.end()

    # ---- publishing ------------------------------------------------------------------------

    async def publish(self, group: str, data: Any) -> str:
        """Send a str, bytes or anything JSON to the members of a group; the id it gets.

        All workers get the messages of all groups in one order.  Raises `QueueFull` when a worker
        does not read and, with `replay`, `PayloadTooLong` for more than the segment's `max_body`.
        """
        self._open()
        message = Message(group, os.urandom(16).hex(), data)
        packed, channel = _pack(message), self._channel(group)

        async def send(connection: AsyncConnection) -> None:
            whole = self._listening()
            if not self.replay:
                await whole.send(channel, packed)
                return
            topic = self._history(group)
            async with connection.transaction():
                await topic.publish(packed)
                await whole.send(channel, packed)

        await self._lasting.call(send)
        return message.id

    # ---- members ---------------------------------------------------------------------------

    def join(self, *groups: str, identity: str | None = None, last_id: str | None = None) -> Member:
        """A member of the groups: `async with broadcast.join("room") as member`.

        `identity`: what `present` calls it.  `last_id`: the id of the last message that the client
        has had; what came after that comes first, as far as it is kept, or else a `Gap`.
        """
        return Member(self, groups, identity, last_id)

    async def present(self, group: str) -> list[str]:
        """The identities of the members of a group, of all workers, each once; sorted."""
        start = self._presence(group, "")
        self._open()
        found = await self._lasting.call(lambda connection: connection.channels(start))
        return sorted(name[len(start) :] for name in found)

    async def count(self, group: str) -> int:
        """How many workers have a member in the group."""
        self._open()
        channel = self._channel(group)
        return await self._lasting.call(lambda connection: connection.listeners(channel))

    async def admit(self, member: Member, last_id: str | None) -> None:
        """Take a member in; `async with` of the member calls it, and `dismiss` when it fails."""
        self._open()
        member.names = self._names_of(member)
        await self._lasting.call(lambda _: self._admit(member))
        if last_id is not None:

            async def replay(_connection: AsyncConnection) -> list[Message | Gap]:
                earlier = await self._since(member.groups, last_id)
                self._listening().read_all()  # or what is kept would come a second time
                return earlier

            member.replay(await self._lasting.call(replay))

    async def _admit(self, member: Member) -> None:
        async with self._changing:
            connection, whole = self._open(), self._listening()
            await connection.listen(*(name for name in member.names if name not in self._present))
            for group in member.groups:
                if group not in self._members:
                    await whole.listen(self._channel(group))
            for group in member.groups:
                self._members.setdefault(group, set()).add(member)
            for name in member.names:
                self._present[name] = self._present.get(name, 0) + 1
            member.admitted = True

    async def dismiss(self, member: Member) -> None:
        """Let a member go; the end of its `async with` calls it.

        It goes on when the caller is cancelled, which anyio does again and again.
        """
        if self._whole is None:
            return  # closed in the meantime
        for group in member.groups:
            self._members.get(group, set()).discard(member)
        task = asyncio.create_task(self._dismiss(member))
        self._dismissing.add(task)
        task.add_done_callback(self._dismissed)
        await asyncio.shield(task)

    def _dismissed(self, task: asyncio.Task[None]) -> None:
        self._dismissing.discard(task)
        if not task.cancelled():
            task.exception()  # of its caller, which may have been cancelled

    async def _dismiss(self, member: Member) -> None:
        """Listen to nothing that no member needs, whatever `admit` had come to."""
        async with self._changing:
            connection, whole = self._lasting.current, self._whole
            if connection is None or whole is None:
                return
            if member.admitted:
                member.admitted = False
                for name in member.names:
                    self._present[name] -= 1
            for name in member.names:
                if not self._present.get(name):
                    self._present.pop(name, None)
                    with contextlib.suppress(SegmentUnlinked):
                        await connection.unlisten(name)
            for group in member.groups:
                if not self._members.get(group):
                    self._members.pop(group, None)
                    with contextlib.suppress(SegmentUnlinked):
                        await whole.unlisten(self._channel(group))

    async def _since(self, groups: Iterable[str], last_id: str) -> list[Message | Gap]:
        """What is kept of the groups after that message, in one order, with a Gap before it where
        some may be missing.  The ids of topics ascend over all topics of a segment."""
        if not self.replay:
            return [Gap(0, "not kept")]
        kept: dict[str, Message] = {}
        last, full = None, []
        for group in groups:
            rows = await self._history(group).channel(_HISTORY).peek(self.replay)
            found = {each.id: _unpack(bytes(each.body)) for each in rows}
            last = next((at for at, each in found.items() if each.id == last_id), last)
            if len(found) >= self.replay:
                full.append(min(found))
            kept.update(found)
        after = [kept[at] for at in sorted(kept) if last is None or at > last]
        if last is None or any(oldest > last for oldest in full):
            return [Gap(0, "not kept"), *after]
        return [*after]

    # ---- names -----------------------------------------------------------------------------

    def _channel(self, group: str) -> str:
        return fitting(f"{self.prefix}:{_CHANNEL}", group, self._limit)

    def _presence(self, group: str, identity: str) -> str:
        # What begins with the place of one group is of no other.
        place = fitting(f"{self.prefix}:{_PRESENT}", group, 0 if "/" in group else 48)
        name = f"{place}/{identity}"
        if len(name.encode()) > self._limit:
            raise ValueError(
                f"the identity {identity!r} is too long: names have at most {self._limit} bytes in"
                f" segment {self.segment!r}; make it with max_channel_name=255"
            )
        return name

    def _names_of(self, member: Member) -> tuple[str, ...]:
        if member.identity is None:
            return ()
        return tuple(self._presence(group, member.identity) for group in member.groups)

    def _history(self, group: str) -> Any:
        name = f"{self.prefix}.{group}"
        if not _TOPIC.fullmatch(name):
            name = fitting(self.prefix, group, 0).replace("#", ".")
        topic = self._open().topic(name, max_depth=self.replay, overflow="drop-oldest")
        topic.channel(_HISTORY)  # it keeps them
        return topic

    # ---- clients ---------------------------------------------------------------------------

    def _event_of(self, message: Message | Gap) -> dict[str, Any]:
        """What is sent for it: its own for each client, as middleware may change it."""
        if isinstance(message, Gap):
            return {"type": "websocket.send", "text": f'{{"gap": {_of_gap(message)}}}'}
        if isinstance(message.data, bytes):
            return {"type": "websocket.send", "bytes": message.data}
        if self._text_of is not message:  # its members send a message one after the other
            self._text_of, self._text = message, message.text()
        return {"type": "websocket.send", "text": self._text}

    async def websocket(
        self,
        websocket: WebSocket,
        *groups: str,
        identity: str | None = None,
        on_message: Callable[[str | bytes], Awaitable[None]] | None = None,
        last_id: str | None = None,
    ) -> None:
        """Serve a WebSocket until it is closed: what is published goes to it.

        What it sends is published in the first group, or given to `on_message`.  A str is sent as
        text, bytes as bytes, anything else as JSON, and a `Gap` as `{"gap": {...}}`.
        """
        if websocket.application_state is WebSocketState.CONNECTING:
            await websocket.accept()
        async with self.join(*groups, identity=identity, last_id=last_id) as member:

            async def forward() -> None:
                while True:
                    try:
                        message = await member.next()
                    except InterfaceError:
                        return
                    await websocket.send(self._event_of(message))

            async def receive() -> None:
                while True:
                    event = await websocket.receive()
                    if event["type"] == "websocket.disconnect":
                        return
                    data: str | bytes = event.get("text") or event.get("bytes") or ""
                    if on_message is not None:
                        await on_message(data)
                    else:
                        await self.publish(groups[0], data)

            await _first_of(forward(), receive())

    def events(
        self,
        request: Request,
        *groups: str,
        identity: str | None = None,
        ping: float = 15.0,
    ) -> StreamingResponse:
        """A response of server-sent events, which ends when the client does.

        Each has the message's id; a client that comes back with `Last-Event-ID` first gets what it
        has missed, see `replay`.  A `Gap` is an event "gap".  A comment goes every `ping` seconds.
        """
        last_id = request.headers.get("last-event-id")

        async def stream() -> AsyncIterator[str]:
            async with self.join(*groups, identity=identity, last_id=last_id) as member:
                yield ": connected\n\n"
                while True:
                    try:
                        async with asyncio.timeout(ping):
                            message = await member.next()
                    except TimeoutError:
                        yield ": ping\n\n"
                        continue
                    except InterfaceError:
                        return  # it listens no more; the client comes back to one that does
                    yield _event(message)

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream(), media_type="text/event-stream", headers=headers)


def _of_gap(gap: Gap) -> str:
    return json.dumps({"missed": gap.missed, "reason": gap.reason})


def _event(message: Message | Gap) -> str:
    if isinstance(message, Gap):
        return f"event: gap\ndata: {_of_gap(message)}\n\n"
    lines = message.text().replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return f"id: {message.id}\n" + "".join(f"data: {line}\n" for line in lines) + "\n"


async def _first_of(*runs: Any) -> None:
    """Until one of them ends; the others are cancelled.  A closed WebSocket is no error."""
    tasks = [asyncio.ensure_future(run) for run in runs]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        with contextlib.suppress(WebSocketDisconnect):
            task.result()
