"""Objects that are larger than a transaction may be: parts, and room for them as others read."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest

import pynotify
from forking import in_child
from nomemory import without_memory_at
from pubsub.conftest import NewPubSub
from pubsub.objects import objects, take
from pynotify._encoding import join_payloads
from pynotify._hot import cut_parts, run_of_parts
from pynotify.pubsub import _local
from pynotify.pubsub._assembly import Assembler, Segment
from pynotify.pubsub._format import LongContainer, container, container_for, cut
from pynotify.pubsub._parts import Flow, Outgoing, Part, run_of
from pynotify.pubsub._state import State
from receiving import receive, wait_until
from sessions import Connect, EngineFactory
from waiting import Call

SMALL = {"queue_pages": 64}  # 512 KiB
LARGE = 2_000_000
MOST = 1 << 20


@pytest.fixture
def small(make_engine: EngineFactory) -> pynotify.Engine:
    return make_engine(**SMALL)


def large(seed: int = 0, size: int = LARGE) -> bytes:
    """Bytes of which no two parts are alike."""
    return b"".join(number.to_bytes(8, "little") for number in range(seed, seed + size // 8))


def outgoing(whole: bytes | LongContainer, limit: int = 100, batch: int = 100) -> list[bytes]:
    return [part for found in Outgoing(whole, limit, batch).batches() for part in found]


@pytest.mark.parametrize(
    "obj",
    [large(), "é" * (LARGE // 2), {"k": "v" * LARGE}, bytes(LARGE)],
    ids=lambda o: type(o).__name__,
)
def test_an_object_larger_than_the_queue_arrives(
    small: pynotify.Engine, connect: Connect, new_pubsub: NewPubSub, obj: Any
) -> None:
    sender, pubsub = new_pubsub(connect(to=small)), new_pubsub(connect(to=small))
    pubsub.subscribe("c")
    sending = Call(lambda: (sender.publish("c", obj), sender.publish("c", "after it")))
    assert objects(take(pubsub, 2)) == [obj, "after it"]
    sending.result()
    assert pubsub.stats() == pynotify.PubSubStats(2, 0, 0, 0, 0)


@pytest.mark.parametrize("on_full", ["block", "drop-slowest"])
def test_whatever_the_queue_does_when_it_is_full(
    make_engine: EngineFactory, connect: Connect, new_pubsub: NewPubSub, on_full: str
) -> None:
    engine = make_engine(**SMALL, on_full=on_full)
    sender, pubsub = new_pubsub(connect(to=engine)), new_pubsub(connect(to=engine))
    pubsub.subscribe("c")
    sending = Call(sender.publish, "c", large())
    assert objects(take(pubsub, 1)) == [large()]
    sending.result()


def test_a_connection_that_listens_itself_reads_what_it_sends(
    small: pynotify.Engine, connect: Connect, new_pubsub: NewPubSub
) -> None:
    """In one thread: no other could make room."""
    pubsub = new_pubsub(connect(to=small))
    pubsub.subscribe("c")
    pubsub.publish("c", large())
    assert objects(take(pubsub, 1)) == [large()]


def test_senders_interleave(
    small: pynotify.Engine, connect: Connect, new_pubsub: NewPubSub
) -> None:
    """Also threads of one connection, and small objects between the parts of large ones."""
    shared, own = new_pubsub(connect(to=small)), new_pubsub(connect(to=small))
    pubsub = new_pubsub(connect(to=small))
    pubsub.subscribe("c")

    def send(sender: pynotify.PubSub, seed: int) -> None:
        for number in range(2):
            sender.publish("c", large(seed + number, 600_000))
            sender.publish("c", f"{seed} {number} " + "é" * 9000)

    sending = [Call(send, *which) for which in ((shared, 0), (shared, 100), (own, 200))]
    received = objects(take(pubsub, 12))
    for call in sending:
        call.result()
    expected = [seed + number for seed in (0, 100, 200) for number in (0, 1)]
    assert sorted(obj for obj in received if isinstance(obj, bytes)) == sorted(
        large(seed, 600_000) for seed in expected
    )
    assert len({obj for obj in received if isinstance(obj, str)}) == 6
    assert pubsub.stats() == pynotify.PubSubStats(12, 0, 0, 0, 0)


def test_a_listener_that_does_not_read(
    make_engine: EngineFactory, connect: Connect, new_pubsub: NewPubSub
) -> None:
    """The sender waits for full_timeout, and names the reader; the other drops what has come."""
    engine = make_engine(**SMALL, full_timeout=0.05)
    sender, pubsub = new_pubsub(connect(to=engine)), new_pubsub(connect(to=engine))
    pubsub.subscribe("c")
    with pytest.raises(pynotify.QueueFull, match=r"process with PID \d+") as caught:
        sender.publish("c", large())
    assert f"of the object's {LARGE + 1} bytes had gone" in (caught.value.hint or "")
    wait_until(lambda: pubsub.run(0) == 0 and pubsub.stats().dropped == 1, "it was given up")
    sending = Call(sender.publish, "c", large(1))
    assert objects(take(pubsub, 1)) == [large(1)]
    sending.result()
    assert pubsub.stats().pending == 0


def test_no_reader_waits_for_the_rest_of_a_dead_sender(
    engine_name: str, new_worker: Any, connect: Connect, new_pubsub: NewPubSub,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(_local, "_LOOK_S", 0.01)
    pubsub = new_pubsub(connect())
    pubsub.subscribe("c")
    worker = new_worker()
    worker.call(send_half, engine_name)
    wait_until(lambda: pubsub.run(0) == 0 and pubsub.stats().pending == 1, "it has begun")
    assert pubsub.stats().pending_bytes > 0
    worker.kill()
    wait_until(lambda: pubsub.run(0.05) == 0 and pubsub.stats().pending == 0, "it is forgotten")
    assert pubsub.stats() == pynotify.PubSubStats(0, 0, 1, 0, 0)


_kept: list[Any] = []


def send_half(name: str) -> None:
    conn = pynotify.connect(name)
    _kept.append(conn)
    conn.notify_many("c", outgoing(large(size=4000))[:3], dedup=False)


def test_in_a_transaction_it_has_to_fit_the_queue(
    small: pynotify.Engine, connect: Connect, new_pubsub: NewPubSub
) -> None:
    conn = connect(to=small)
    other, sender = new_pubsub(connect(to=small)), new_pubsub(conn)
    other.subscribe("c")
    with pytest.raises(pynotify.QueueFull, match="queue_pages"), conn.transaction():
        sender.publish("c", large())


def test_what_a_bridge_sends_on_is_never_in_parts(
    small: pynotify.Engine, connect: Connect, new_pubsub: NewPubSub,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """They are no text, which is all that PostgreSQL has."""
    monkeypatch.setattr(_local, "_goes_upstream", lambda *_: True)
    pubsub = new_pubsub(connect(to=small))
    pubsub.subscribe("c")
    with pytest.raises(pynotify.QueueFull, match="queue_pages"):
        pubsub.publish("c", large())


def test_the_sender_needs_memory_for_little_more_than_the_object(
    connect: Connect, new_pubsub: NewPubSub
) -> None:
    pubsub, obj = new_pubsub(connect()), bytes(32 << 20)
    tracemalloc.start()
    try:
        pubsub.publish("c", obj)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * len(obj)  # the container, and a transaction


def test_interrupted_it_takes_back_what_it_has_sent(
    small: pynotify.Engine, connect: Connect, new_pubsub: NewPubSub,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    sender, pubsub = new_pubsub(connect(to=small)), new_pubsub(connect(to=small))
    pubsub.subscribe("c")

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_local.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        sender.publish("c", large())
    monkeypatch.undo()
    sender.publish("c", "x")
    assert objects(take(pubsub, 1)) == ["x"]
    assert pubsub.stats() == pynotify.PubSubStats(1, 0, 1, 0, 0)


# ---- putting together ----------------------------------------------------------------------------


class Listener:
    def __init__(self, **bounds: int) -> None:
        self.assembler = Assembler(**({"max_object": 1000, "max_pending": 1000} | bounds))
        self.heard: list[Any] = []

    def hears(self, payload: bytes, sender: int = 1) -> None:
        arrived = self.assembler.take(Segment("c", sender, 42, payload))
        if arrived is not None:
            self.heard.append(arrived.obj)

    def counts(self) -> tuple[int, int, int, int]:
        """Malformed, dropped, pending, bytes."""
        stats = self.assembler.stats()
        return stats.malformed, stats.dropped, stats.pending, stats.pending_bytes


def test_a_subscriber_from_the_middle_on_hears_nothing_of_it() -> None:
    listener = Listener()
    for part in outgoing(b"!" + b"x" * 300)[1:]:
        listener.hears(part)
    assert (listener.heard, listener.counts()) == ([], (0, 0, 0, 0))


@pytest.mark.parametrize("size", [499, 500, 501])
def test_max_object(size: int) -> None:
    listener = Listener(max_object=500)
    for part in outgoing(b"!" + b"x" * size):
        listener.hears(part)
    fits = size <= 500
    assert listener.heard == (["x" * size] if fits else [])
    assert listener.counts() == (0, int(not fits), 0, 0)


def test_max_pending_drops_the_oldest() -> None:
    listener = Listener(max_pending=200)
    first, second = outgoing(b"!" + b"x" * 300), outgoing(b"!" + b"y" * 190)
    for part in (*first[:2], *second, *first[2:]):
        listener.hears(part)
    assert (listener.heard, listener.counts()) == (["y" * 190], (0, 1, 0, 0))


def test_a_gap_ends_what_has_begun() -> None:
    listener = Listener()
    first, *rest = outgoing(b"!" + b"x" * 300)
    listener.hears(first)
    listener.assembler.forget_all("something is missing")
    for part in rest:
        listener.hears(part)
    assert (listener.heard, listener.counts()) == ([], (0, 1, 0, 0))


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: [parts[0], parts[2]],
        lambda parts: [parts[0], parts[0]],
        lambda parts: [parts[0][:20]],
        lambda parts: [parts[0][:25]],
        lambda parts: [b"~" + b"a long text, as PostgreSQL has it"],
        lambda parts: [parts[-1] + b"y"],
    ],
    ids=["a part is missing", "twice", "short", "nothing in it", "text", "too much"],
)
def test_malformed_parts(change: Any) -> None:
    listener = Listener()
    for part in change(outgoing(b"!" + b"x" * 200)):
        listener.hears(part)
    assert (listener.heard, listener.counts()) == ([], (1, 0, 0, 0))


def test_a_size_that_grows_does_not_pass_max_object() -> None:
    listener = Listener(max_object=300)
    numbered = outgoing(b"!" + b"x" * 200)
    longer = [part[:17] + (1000).to_bytes(8, "little") + part[25:] for part in numbered]
    listener.hears(numbered[0])
    listener.hears(longer[1])
    assert listener.counts() == (0, 1, 0, 0)


# ---- runs: parts that follow each other when they are read -----------------------------------


class _Taken(State):
    """What notifications make, put together all at once or one after the other."""

    def __init__(self, messages: Iterable[Any], *, at_once: bool) -> None:
        super().__init__(max_object=1500, max_pending=1200, codec=None)
        self._channels = {"a": None, "b": None}
        for message in messages:
            self._came.append(message)
            if not at_once:
                self._take_in(set())
        self._take_in(set())
        self.objects = [(each.channel, each.obj, each.headers) for each in self._ready]
        self.left = len(self._came), self._came.done


def _spoiled(parts: list[bytes], rng: random.Random) -> list[bytes]:
    """As they are, or without one, with one twice, changed, or of another size."""
    at, how = rng.randrange(len(parts)), rng.randrange(12)
    part = parts[at]
    changes = {
        0: [],
        1: [part, part],
        2: [part[: rng.randrange(1, len(part) + 1)]],
        3: [part + b"more"],
        4: [part[:17] + (1400).to_bytes(8, "little") + part[25:]],
        5: [part[:17] + bytes(8)],
        6: [b"plain", part],
    }
    return parts[:at] + changes.get(how, [part]) + parts[at + 1 :]


def _random_messages(rng: random.Random) -> list[Any]:
    """Objects of three senders in parts, in pieces, and plain, that interleave now and then."""
    waiting: list[list[Any]] = []
    for seq in range(1, rng.randrange(3, 10)):
        sender, channel = rng.randrange(3), rng.choice("aaabc")
        body = b"%" + rng.randbytes(rng.choice([1, 90, 300, 1400, 1499, 1500, 1600]))
        whole = rng.choice(
            [body, body, b"!" + b"text" * 70, b'@{"k": [1, 2]}' + b" " * 80, b"?" * 99]
        )
        payloads = _spoiled(outgoing(whole), rng) if rng.random() < 0.8 else cut(whole, 100)
        made = [pynotify.Notify(channel, each, 1, seq, 0, sender) for each in payloads]
        if made and rng.random() < 0.3:  # as they are sent: the last has the headers
            made[-1] = pynotify.Notify(
                channel, made[-1].data, 1, seq, 0, sender, headers=b'{"k": "v"}'
            )
        waiting.append(made)
        if rng.random() < 0.1:
            waiting.append([pynotify.Gap(1, "lag")])
    found: list[Any] = []
    while waiting:
        chosen = waiting[0 if rng.random() < 0.8 else rng.randrange(len(waiting))]
        for _ in range(rng.randrange(1, 40)):
            if chosen:
                found.append(chosen.pop(0))
        waiting = [each for each in waiting if each]
    return found


@pytest.mark.parametrize("size", [1, 73, 74, 75, 76, 149, 150, 151, 225, 1000])
@pytest.mark.parametrize("batch", [100, 300, 5000])
def test_a_container_in_two_makes_the_same_parts(size: int, batch: int) -> None:
    body = large(size=1000)[:size]
    both = [b"%" + body, LongContainer(b"%", body)]
    one, two = ([Part(part) for part in outgoing(whole, batch=batch)] for whole in both)
    assert b"".join(part.data for part in two) == both[0]
    described = [[(part.place, part.size, part.ends) for part in parts] for parts in (one, two)]
    assert described[0] == described[1]
    assert [len(part.data) for part in one] == [len(part.data) for part in two]


@pytest.mark.parametrize("seed", range(20))
def test_parts_are_what_the_document_says(seed: int) -> None:
    """docs/pubsub.md: `~`, the number, the place, the size, and bytes of the container."""
    random_ = random.Random(seed)
    flag, body = random_.choice([b"", b"%"]), random_.randbytes(random_.randrange(1, 500))
    whole, number = flag + body, random_.randrange(1 << 64)
    begin = random_.randrange(len(whole))
    end, size = random_.randrange(begin, len(whole)) + 1, random_.randrange(1, 120)
    parts = cut_parts(flag, body, number, begin, end, size)
    expected = [
        b"~" + struct.pack("<QQQ", number, at, len(whole)) + whole[at : min(at + size, end)]
        for at in range(begin, end, size)
    ]
    assert list(parts) == expected and len(parts) == len(expected)
    assert parts[-1] == expected[-1] and parts[0] == expected[0]
    with pytest.raises(IndexError):
        parts[len(parts)]
    joined, lengths = join_payloads(parts)
    assert joined == b"".join(expected) and list(lengths) == list(map(len, expected))


@pytest.mark.parametrize(
    "place", [(-1, 5, 3), (5, 5, 3), (0, 12, 3), (0, 5, 0), (0, 5, -1), (0, 5, 1 << 32)]
)
def test_parts_that_there_are_not(place: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="no such parts"):
        cut_parts(b"%", b"0123456789", 1, *place)


def test_parts_go_as_a_list_of_them_goes(connect: Connect) -> None:
    """At once, in a transaction, and with headers."""
    sender, listener = connect(), connect()
    listener.listen("c")
    parts = cut_parts(b"%", large(size=80_000), 1, 0, 80_000, 7000)
    assert sender.notify_many("c", parts, dedup=False) == len(parts)
    with sender.transaction():
        assert sender.notify_many("c", parts, dedup=False) == len(parts)
    assert sender.notify_many("c", parts, headers={"k": "v"}) == len(parts)
    received = [message.data for message in receive(listener, 3 * len(parts))]
    assert received == 3 * list(parts)


def test_parts_where_there_is_no_memory() -> None:
    def all_places() -> list[str]:
        wrong, failures = [], 0
        for place in range(1, 10):
            call = partial(cut_parts, b"%", b"x" * 1000, 1, 0, 1001, 100)
            parts, failed = without_memory_at(place, call)
            if not failed and len(parts) != 11:
                wrong.append(f"{place}: {len(parts)}")
            failures += failed
        return wrong if failures > 1 else [f"only {failures} failures"]

    assert in_child(all_places) == []


@pytest.mark.parametrize(
    "obj", [b"x" * 99, b"x" * 100, bytearray(200), "é" * 50, {"k": "v" * 200}, [1] * 100]
)
def test_a_container_is_in_two_when_it_is_longer_than_a_payload(obj: Any) -> None:
    found = container_for(obj, 100)
    assert bytes(found) == container(obj) and len(found) == len(container(obj))
    assert isinstance(found, LongContainer) == (len(container(obj)) > 100)


def test_bytes_are_not_copied_before_their_parts_are() -> None:
    """Another thread may change a bytearray meanwhile: of that one there is a copy."""
    data, changing = large(), bytearray(large())
    whole, copied = container_for(data, 100), container_for(changing, 100)
    assert isinstance(whole, LongContainer) and whole.body is data
    assert isinstance(copied, LongContainer) and copied.body == data
    changing[0] ^= 1
    assert copied.body == data


@pytest.mark.parametrize("seed", range(60))
def test_runs_make_what_parts_make_one_by_one(seed: int) -> None:
    messages = _random_messages(random.Random(seed))
    taken, one_by_one = (_Taken(messages, at_once=at_once) for at_once in (True, False))
    assert taken.objects == one_by_one.objects
    assert taken.stats() == one_by_one.stats()
    assert taken.left == one_by_one.left == (0, 0)


def test_a_run_is_what_continues() -> None:
    whole = large(size=1000)
    parts = [pynotify.Notify("c", part, 1) for part in outgoing(whole)]
    run = run_of(parts, MOST)
    assert run is not None and run.ends and run.data == whole and run.last == parts[-1]
    assert run_of(parts[:1], MOST) is None
    other = [pynotify.Notify("c", part, 1) for part in outgoing(whole)]
    for first, rest in ((parts[:3], other), (parts[:3], parts[4:]), (parts[:3], parts[:3])):
        run = run_of([*first, *rest], MOST)
        assert run is not None and len(run.views) == 3 and not run.ends
    run = run_of([*parts[:3], pynotify.Gap(1, "lag"), *parts[3:]], MOST)
    assert run is not None and len(run.views) == 3
    for changed in ({"sender": 2}, {"channel": "d"}):
        same = {"channel": "c", "pid": 1, **changed}
        rest = [pynotify.Notify(payload=part.data, **same) for part in parts[3:]]
        run = run_of([*parts[:3], *rest], MOST)
        assert run is not None and len(run.views) == 3, "each process counts from 1"
    run = run_of([*parts, *other], MOST)
    assert run is not None and len(run.views) == len(parts)


def test_a_run_where_there_is_no_memory() -> None:
    parts = [pynotify.Notify("c", part, 1) for part in outgoing(large(size=1000))]

    def all_places() -> list[str]:
        wrong, failures = [], 0
        for place in range(1, 40):
            found, failed = without_memory_at(place, partial(run_of_parts, iter(parts), MOST))
            if not failed and found != parts:
                wrong.append(f"{place}: {found}")
            failures += failed
        return wrong if failures > 1 else [f"only {failures} failures"]

    assert in_child(all_places) == []


def test_a_run_has_no_more_than_there_is_room_for() -> None:
    """Nor is more looked at, or what is left of an object would be looked at once for each part."""
    parts = [pynotify.Notify("c", part, 1) for part in outgoing(large(size=1000))]
    sizes = [len(Part(part.data).data) for part in parts]
    for most, expected in ((sum(sizes[:3]), 3), (sum(sizes[:3]) - 1, 2), (sizes[0], 0), (0, 0)):
        left = iter(parts)
        run = run_of(left, most)
        assert (0 if run is None else len(run.views)) == expected
        assert len(parts) - len(list(left)) <= expected + 2


# ---- flow ----------------------------------------------------------------------------------------


def test_a_sender_waits_as_long_as_something_is_read() -> None:
    now = [0.0]
    flow = Flow(5.0, clock=lambda: now[0])
    assert flow.pause(0.3) == 0
    for usage in (0.9, 0.8, 0.7, 0.6):
        assert flow.pause(usage) > 0
        now[0] += 4
    assert flow.pause(0.3) == 0
    assert flow.pause(0.9) > 0
    now[0] += 5
    assert flow.pause(0.9) == 0  # the commit says what happens now
    assert not flow.again()


def test_others_may_be_faster() -> None:
    now = [0.0]
    flow = Flow(5.0, clock=lambda: now[0])
    assert flow.pause(0.3) == 0
    assert flow.again()
    assert flow.pause(0.3) > 0
    assert flow.pause(0.3) == 0
    now[0] += 1
    assert flow.again()
