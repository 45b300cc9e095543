"""numpy arrays through PubSub: what arrives, and what becomes of the memory."""

from __future__ import annotations

import gc
import io
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import pynotify
from pubsub.arrays import BLOCK, Array, blocks, frame, in_queue, number_of
from pubsub.conftest import NewPubSub
from pubsub.objects import objects, take
from pubsub.server import Server
from pynotify._array_files import ArrayFiles, array_files
from pynotify.pubsub import _arena, _guard, _local, _memory, _shared
from pynotify.pubsub._arrays import describe
from pynotify.pubsub._assembly import Assembler, Segment
from receiving import PATIENCE, wait_until
from sessions import Connect, EngineFactory
from waiting import Call

NESTED = np.dtype([("id", "<u4"), ("where", [("x", "f8"), ("y", ">f4")]), ("tags", "S3", (2,))])
ALIGNED = np.dtype([("flag", "?"), ("value", "f8")], align=True)
DTYPES = [
    "?", "i1", "<u2", ">i4", "i8", "f2", "f4", "f8", ">f8", "c8", "c16", "g",
    "M8[ns]", "m8[s]", "S5", "U7", "V3", NESTED, ALIGNED,
]  # fmt: skip


def bytes_are_equal(received: Array, sent: Array) -> bool:
    return received.tobytes() == sent.tobytes()


def same(received: Any, sent: Array) -> bool:
    return bool(
        type(received) is np.ndarray
        and received.dtype == sent.dtype
        and received.shape == sent.shape
        and (
            bool((received == sent).all()) if sent.dtype.fields else bytes_are_equal(received, sent)
        )
        and not received.flags.writeable
    )


def patterned(dtype: Any, count: int) -> Array:
    """So many items of bytes of which no two stretches are alike."""
    kind = np.dtype(dtype)
    if kind == np.dtype("?"):
        return np.arange(count) % 3 == 0
    if kind.fields:  # what is between fields is not sent
        array = np.zeros(count, kind)
        for name in kind.fields:
            array[name] = patterned(kind.fields[name][0], count) if name != "tags" else b"t"
        return array
    if kind.kind == "f":
        return (np.arange(count) % 100).astype(kind)
    if kind.kind == "U":
        return np.array([f"é{number}" for number in range(count)], kind)
    return np.frombuffer(np.arange(count * kind.itemsize).astype("u1").tobytes(), kind)


# ---- what arrives --------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 70_000], ids=["in the queue", "shared"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(
    sender: pynotify.PubSub, receiver: pynotify.PubSub, dtype: Any, count: int
) -> None:
    sent = patterned(dtype, count)
    sender.publish("c", sent)
    (received,) = objects(take(receiver, 1))
    assert same(received, sent)
    assert in_queue(received) == (sent.nbytes < _shared.SHARED_FROM)


@pytest.mark.parametrize("scale", [1, 64], ids=["in the queue", "shared"])
def test_every_layout(sender: pynotify.PubSub, receiver: pynotify.PubSub, scale: int) -> None:
    cube = np.arange(6 * 20 * scale * 40, dtype="i4").reshape(6, 20 * scale, 40)
    layouts = [
        cube,
        np.asfortranarray(cube),
        cube.T,
        cube.transpose(1, 0, 2),
        cube[::2, ::-1, 3:],
        np.broadcast_to(cube[0, 0], (500 * scale, 40)),
        cube[:0],
        np.array(7.5),
        np.zeros((3, 0, 2)),
    ]
    for sent in layouts:
        sender.publish("c", sent)
        (received,) = objects(take(receiver, 1))
        assert same(received, sent)
    sender.publish("c", np.asfortranarray(cube))
    assert objects(take(receiver, 1))[0].flags.f_contiguous
    assert receiver.stats() == pynotify.PubSubStats(len(layouts) + 1, 0, 0, 0, 0)


def test_a_subclass_arrives_as_an_array(
    sender: pynotify.PubSub, receiver: pynotify.PubSub, tmp_path: Any
) -> None:
    mapped = np.memmap(tmp_path / "array", np.float32, "w+", shape=(300, 100))
    mapped[:] = 1.5
    sender.publish("c", mapped)
    (received,) = objects(take(receiver, 1))
    assert same(received, np.asarray(mapped))


@pytest.mark.parametrize(
    "array",
    [
        np.array([object(), None]),
        np.zeros(2, [("a", "i4"), ("b", "O")]),
        np.ma.masked_array([1, 2], [True, False]),
        np.array(["a", "b"], np.dtypes.StringDType()),
    ],
    ids=["objects", "a field of objects", "masked", "strings behind pointers"],
)
def test_what_its_bytes_do_not_say_is_refused(sender: pynotify.PubSub, array: Any) -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        sender.publish("c", array)
    with pytest.raises(TypeError):
        sender.publish("c", {"in JSON": np.zeros(3)})


@pytest.mark.parametrize("count", [10, 100_000], ids=["in the queue", "shared"])
def test_it_is_read_only(sender: pynotify.PubSub, receiver: pynotify.PubSub, count: int) -> None:
    sender.publish("c", frame(1, count))
    (received,) = objects(take(receiver, 1))
    with pytest.raises(ValueError, match="read-only"):
        received[0] = 2
    with pytest.raises(ValueError, match="WRITEABLE"):
        received.flags.writeable = True
    with pytest.raises(ValueError, match="WRITEABLE"):
        received[5:].flags.writeable = True


def test_the_sender_may_change_it_afterwards(
    sender: pynotify.PubSub, receiver: pynotify.PubSub
) -> None:
    array = frame(1)
    sender.publish("c", array)
    array[:] = 2
    assert number_of(objects(take(receiver, 1))[0]) == 1


def test_order_among_other_objects(sender: pynotify.PubSub, receiver: pynotify.PubSub) -> None:
    for number in range(3):
        sender.publish("c", frame(number))
        sender.publish("c", f"after {number}")
        sender.publish("c", frame(number, 10))
    received = objects(take(receiver, 9))
    assert received[1::3] == ["after 0", "after 1", "after 2"]
    assert [number_of(received[i]) for i in (0, 2, 3, 5, 6, 8)] == [0, 0, 1, 1, 2, 2]


def test_what_is_not_shared_does_not_wait_for_blocks(
    sender: pynotify.PubSub, receiver: pynotify.PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While listeners have not read the shared ones before it."""
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("it waits"))
    for number in range(3):
        sender.publish("c", frame(number))
        sender.publish("c", frame(number, 10))
    assert [number_of(array) for array in objects(take(receiver, 6))] == [0, 0, 1, 1, 2, 2]


def test_malformed_ones_are_counted() -> None:
    assembler = Assembler(max_object=1 << 20, max_pending=1 << 20)
    good = describe(np.zeros(3))
    texts = [good[:-5], b"(1,2)", b"('<f8', (-1,), 'C')", b"('|O', (3,), 'C')", b"('<f8', (1,), 7)"]
    payloads = [b"&", b"&\0\xff\xff", b"&\0" + len(good).to_bytes(2, "little") + good + bytes(23)]
    payloads += [b"&\0" + len(text).to_bytes(2, "little") + text + bytes(24) for text in texts]
    payloads += [b"&\1" + len(good).to_bytes(2, "little") + good + bytes(40)]
    for payload in payloads:
        assert assembler.take(Segment("c", 1, 1, payload)) is None
    assert assembler.stats().malformed == len(payloads)


# ---- the memory ----------------------------------------------------------------------------------


def test_a_block_is_used_again(
    sender: pynotify.PubSub, receiver: pynotify.PubSub, engine_name: str
) -> None:
    for number in range(20):
        sender.publish("c", frame(number))
        assert number_of(objects(take(receiver, 1))[0]) == number
    assert len(blocks(engine_name)) == 1
    sender.close()
    assert blocks(engine_name) == []


def test_after_a_backlog_few_blocks_are_in_use(
    sender: pynotify.PubSub, receiver: pynotify.PubSub, engine_name: str
) -> None:
    """A round of all that there are would leave the caches of the processor."""
    for number in range(16):
        sender.publish("c", frame(number))
    assert [number_of(obj) for obj in objects(take(receiver, 16))] == list(range(16))
    assert len(blocks(engine_name)) == 16
    places = set()
    for number in range(16):
        sender.publish("c", frame(number))
        (received,) = objects(take(receiver, 1))
        assert number_of(received) == number
        places.add(received.ctypes.data)
    assert len(places) <= 4


def test_iterating_keeps_no_array(
    sender: pynotify.PubSub, receiver: pynotify.PubSub, engine_name: str
) -> None:
    """The generator stands where it has handed out the last one."""
    received = iter(receiver)
    for number in range(3):
        sender.publish("c", frame(number))
        assert number_of(next(received).obj) == number
    assert len(blocks(engine_name)) == 1


def test_no_listener_no_memory_more_than_one(sender: pynotify.PubSub, engine_name: str) -> None:
    for number in range(20):
        sender.publish("c", frame(number))
    assert len(blocks(engine_name)) == 1


@pytest.mark.parametrize(
    "part",
    [lambda array: array, lambda array: array[5:9][1:], memoryview, lambda array: array.view("u1")],
    ids=["array", "view of a view", "memoryview", "other dtype"],
)
def test_it_lives_as_long_as_any_view(
    sender: pynotify.PubSub, receiver: pynotify.PubSub, engine_name: str, part: Any
) -> None:
    sender.publish("c", frame(77))
    kept = part(objects(take(receiver, 1))[0])
    before = bytes(kept)
    for number in range(5):
        sender.publish("c", frame(number))
        take(receiver, 1)
    assert bytes(kept) == before
    assert len(blocks(engine_name)) == 2
    sender.close()
    assert len(blocks(engine_name)) == 1
    del kept
    receiver.run(0)
    assert blocks(engine_name) == []


def test_unmapping_runs_no_python(tmp_path: Path) -> None:
    """It takes milliseconds where a block is large, and in a `__del__` Ctrl-C would be lost."""
    file = tmp_path / "block"
    file.write_bytes(b"x" * (1 << 20))
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls.append(frame.f_code.co_qualname)

    def is_mapped() -> bool:
        return str(file) in Path("/proc/self/maps").read_text()

    with file.open("rb+") as opened:
        mapping = _memory.Mapping(opened.fileno(), 1 << 20)
    part = mapping.bytes_at(5, 3, mapping)
    assert bytes(part) == b"xxx"
    assert is_mapped()
    sys.setprofile(note)
    try:
        del part, mapping
    finally:
        sys.setprofile(None)
    assert not is_mapped()
    assert calls == []


def test_an_array_outlives_its_pubsub_and_connection(
    sender: pynotify.PubSub, connect: Connect, engine_name: str
) -> None:
    conn = connect()
    with pynotify.PubSub(conn) as pubsub:
        pubsub.subscribe("c")
        sender.publish("c", frame(5))
        (kept,) = objects(take(pubsub, 1))
    conn.close()
    for number in range(5):
        sender.publish("c", frame(number))
    assert number_of(kept) == 5


def test_other_sizes_make_room(
    connect: Connect, new_pubsub: NewPubSub, receiver: pynotify.PubSub, engine_name: str
) -> None:
    sender = new_pubsub(connect(), max_shared=2 * BLOCK)
    for count in (1 << 17, 1 << 14, 1 << 15, 1 << 18, 1 << 13, 1 << 17):
        for number in range(3):
            sender.publish("c", frame(number, count))
            (received,) = objects(take(receiver, 1))
            assert number_of(received) == number
            assert not in_queue(received)
            del received
        there = [os.stat(f"/dev/shm/{name}").st_size for name in blocks(engine_name)]
        assert sum(there) <= 2 * BLOCK


def test_what_is_beyond_max_shared_goes_through_the_queue(
    connect: Connect, new_pubsub: NewPubSub, receiver: pynotify.PubSub, engine_name: str
) -> None:
    sender = new_pubsub(connect(), max_shared=2 * BLOCK)
    kept = []
    for number in range(4):
        sender.publish("c", frame(number))
        kept += objects(take(receiver, 1))
    assert [number_of(array) for array in kept] == [0, 1, 2, 3]
    assert [in_queue(array) for array in kept] == [False, False, True, True]
    del kept[0]
    sender.publish("c", frame(9))
    assert not in_queue(objects(take(receiver, 1))[0])
    none = new_pubsub(connect(), max_shared=0)
    none.publish("c", frame(3))
    assert in_queue(objects(take(receiver, 1))[0])
    with pytest.raises(ValueError, match="max_shared"):
        pynotify.PubSub(connect(), max_shared=-1)


def test_arrays_cost_no_descriptors(sender: pynotify.PubSub, receiver: pynotify.PubSub) -> None:
    sender.publish("c", frame(0, 10_000))
    kept = objects(take(receiver, 1))
    before = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        sender.publish("c", frame(number, 10_000))
    kept += objects(take(receiver, 50))
    assert len(os.listdir("/proc/self/fd")) <= before
    assert not any(map(in_queue, kept))


# ---- listeners that come late to what was sent ---------------------------------------------------


def test_a_slow_listener_finds_everything(
    make_engine: EngineFactory, connect: Connect, new_pubsub: NewPubSub
) -> None:
    """First what has room in blocks, then the rest through the queue."""
    engine = make_engine(full_timeout=0.01)
    sender = new_pubsub(connect(to=engine), max_shared=4 * BLOCK)
    slow, quick = new_pubsub(connect(to=engine)), new_pubsub(connect(to=engine))
    slow.subscribe("c")
    quick.subscribe("c")
    for number in range(6):
        sender.publish("c", frame(number))
        assert number_of(objects(take(quick, 1))[0]) == number
    received = objects(take(slow, 6))
    assert [number_of(array) for array in received] == list(range(6))
    assert [in_queue(array) for array in received] == [False] * 4 + [True] * 2


def test_a_publisher_waits_for_listeners_to_read(
    connect: Connect, new_pubsub: NewPubSub, receiver: pynotify.PubSub
) -> None:
    """It is not the listener, and that reads as soon as it is called."""
    sender = new_pubsub(connect(), max_shared=2 * BLOCK)

    def send() -> None:
        for number in range(40):
            sender.publish("c", frame(number))

    sending = Call(send)
    for number in range(40):
        (received,) = objects(take(receiver, 1))
        assert number_of(received) == number
        assert not in_queue(received)
        del received
    sending.result()


def test_what_was_read_for_a_pubsub_and_waits_keeps_its_block(
    sender: pynotify.PubSub, connect: Connect, new_pubsub: NewPubSub
) -> None:
    """The queue's tail has passed it, and no array of it exists yet."""
    conn = connect()
    receiver = new_pubsub(conn)
    receiver.subscribe("c")
    sender.publish("c", frame(0))
    for number in range(1, 6):
        assert conn.poll() == []  # reads for the PubSub, too
        sender.publish("c", frame(number))
    assert [number_of(array) for array in objects(take(receiver, 6))] == list(range(6))


def test_a_closed_pubsub_keeps_no_block_of_what_was_read_for_it(
    sender: pynotify.PubSub, connect: Connect, new_pubsub: NewPubSub, engine_name: str
) -> None:
    """Its connection goes on."""
    conn = connect()
    receiver = new_pubsub(conn)
    receiver.subscribe("c")
    sender.publish("c", frame(0))
    assert conn.poll() == []  # reads for the PubSub, too
    receiver.close()
    for number in range(5):
        sender.publish("c", frame(number))
    assert len(blocks(engine_name)) == 1


def test_an_array_that_is_gone_is_a_gap(
    sender: pynotify.PubSub, connect: Connect, new_pubsub: NewPubSub,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Never another array: here nothing says that one was read and not looked at."""
    monkeypatch.setattr(_guard.Guard, "reading", lambda self: None)
    conn = connect()
    receiver = new_pubsub(conn)
    receiver.subscribe("c")
    gaps: list[Any] = []
    receiver.on("c", gaps.append)
    for number in range(3):
        sender.publish("c", frame(number))
        assert conn.poll() == []
    received = take(receiver, 3)
    gap = pynotify.Gap(frame(0).nbytes, pynotify.Gap.ARRAY, 1)
    assert received[0] == received[1] == (None, gap, None)
    assert number_of(received[2].obj) == 2
    assert gaps[:2] == [gap, gap]
    assert receiver.stats() == pynotify.PubSubStats(1, 0, 2, 0, 0)


def test_files_removed_by_hand_are_a_gap(
    sender: pynotify.PubSub, receiver: pynotify.PubSub, engine_name: str
) -> None:
    sender.publish("c", frame(1))
    for name in blocks(engine_name):
        os.unlink(f"/dev/shm/{name}")
    assert take(receiver, 1)[0].obj.reason == pynotify.Gap.ARRAY


def test_a_descriptor_that_is_another_files_now(
    sender: pynotify.PubSub, connect: Connect, engine_name: str, tmp_path: Any
) -> None:
    """A program that closes what is not its own: nothing is locked, nor closed, there."""
    receiver = pynotify.PubSub(connect())
    receiver.subscribe("c")
    sender.publish("c", frame(1))
    take(receiver, 1)
    (held,) = [each for each in _guard._all_held if engine_name in each._files.lock_path]
    with open(tmp_path / "other", "w+b") as other:
        number = held.locks.fd
        os.dup2(other.fileno(), number)
        try:
            sender.publish("c", frame(2))
            assert take(receiver, 1)[0].obj.reason == pynotify.Gap.ARRAY
            del held
            receiver.close()
            assert os.path.samestat(os.fstat(number), os.fstat(other.fileno()))
        finally:
            os.close(number)


def test_another_lock_file_is_noticed(
    connect: Connect, new_pubsub: NewPubSub, receiver: pynotify.PubSub, engine_name: str
) -> None:
    """Its locks would say nothing to those that hold the old one."""
    old, new = new_pubsub(connect()), new_pubsub(connect())
    old.publish("c", frame(1))
    (kept,) = objects(take(receiver, 1))
    (name,) = set(array_files(engine_name)) - set(blocks(engine_name))
    os.unlink(f"/dev/shm/{name}")
    new.publish("c", frame(2))
    held = objects(take(receiver, 1))
    for number in range(5):
        new.publish("c", frame(number))
        take(receiver, 1)
    assert number_of(held[0]) == 2
    assert number_of(kept) == 1


# ---- transactions, threads, other connections ----------------------------------------------------


def test_in_a_transaction_it_is_sent_at_the_commit(
    connect: Connect, new_pubsub: NewPubSub, receiver: pynotify.PubSub, engine_name: str
) -> None:
    conn = connect()
    sender = new_pubsub(conn)
    with conn.transaction():
        for number in range(3):
            sender.publish("c", frame(number))
        Call(sender.publish, "c", frame(9)).result()
        assert number_of(objects(take(receiver, 1))[0]) == 9
        Call(sender.publish, "c", frame(10)).result()
        assert number_of(objects(take(receiver, 1))[0]) == 10
    assert [number_of(array) for array in objects(take(receiver, 3))] == [0, 1, 2]
    with pytest.raises(RuntimeError), conn.transaction():
        sender.publish("c", frame(11))
        raise RuntimeError
    sender.close()
    assert receiver.run(0) == 0
    assert blocks(engine_name) == []


def test_connected_again(new_name: Any, new_pubsub: NewPubSub) -> None:
    """What was read of the old segment is gone with its files, and nothing waits for it."""
    name = new_name()
    sender, receiver = (new_pubsub(lambda: pynotify.connect(name)) for _ in range(2))
    receiver.subscribe("c")
    for number in range(30):
        sender.publish("c", f"{number}")
    for number in range(2):
        sender.publish("c", frame(number))
    take(receiver, 31)
    pynotify.unlink(name, force=True)
    received = []
    while not any(
        isinstance(obj, pynotify.Gap) and obj.reason == "reconnected" for obj in received
    ):
        received += objects(take(receiver, 1))
    assert isinstance(received[0], pynotify.Gap)
    assert len(received) == 2
    del received
    for number in range(5):
        sender.publish("c", frame(number))
        sender.publish("c", frame(number))
        assert [number_of(array) for array in objects(take(receiver, 2))] == [number] * 2
    assert len(blocks(name)) <= 3


def test_threads_of_one_pubsub(sender: pynotify.PubSub, receiver: pynotify.PubSub) -> None:
    def send(first: int) -> None:
        for number in range(first, first + 30):
            sender.publish("c", frame(number, 20_000))

    sender.publish("c", frame(0, 20_000))  # else the receiver may just be reading, see (3)
    take(receiver, 1)
    sending = [Call(send, 100 * thread) for thread in range(4)]
    numbers = []
    while len(numbers) < 120:
        numbers += [number_of(array) for array in objects(take(receiver, 1))]
    for call in sending:
        call.result()
    assert sorted(numbers) == [100 * thread + at for thread in range(4) for at in range(30)]
    for thread in range(4):
        mine = [number for number in numbers if number // 100 == thread]
        assert mine == sorted(mine)


def test_arrays_that_the_collector_finds(
    sender: pynotify.PubSub, receiver: pynotify.PubSub, engine_name: str
) -> None:
    """It runs in the middle of anything, here with the reader's own lock held."""
    sender.publish("c", frame(1))
    cycle: list[Any] = objects(take(receiver, 1))
    cycle.append(cycle)
    del cycle
    held = [each for each in gc.get_objects() if isinstance(each, _guard._Held)]
    with held[0]._lock:
        gc.collect()
    del held
    sender.publish("c", frame(2))
    take(receiver, 1)
    sender.publish("c", frame(3))
    take(receiver, 1)
    sender.close()
    assert blocks(engine_name) == []


def test_a_pubsub_hears_its_own_arrays(connect: Connect, new_pubsub: NewPubSub) -> None:
    both, other = new_pubsub(connect()), new_pubsub(connect(), skip_self=True)
    both.subscribe("c")
    other.subscribe("c")
    for number in range(3):
        both.publish("c", frame(number))
        other.publish("c", frame(10 + number))
    assert [number_of(array) for array in objects(take(both, 6))] == [0, 10, 1, 11, 2, 12]
    assert [number_of(array) for array in objects(take(other, 3))] == [0, 1, 2]


def test_one_that_skips_itself_uses_its_block_again(
    connect: Connect, new_pubsub: NewPubSub, engine_name: str
) -> None:
    """Also where another thread reads for it."""
    conn = connect()
    pubsub = new_pubsub(conn, skip_self=True)
    pubsub.subscribe("c")
    for number in range(5):
        pubsub.publish("c", frame(number))
        assert conn.poll() == []
    assert len(blocks(engine_name)) == 1


def test_a_listener_that_is_no_pubsub_holds_nothing(
    sender: pynotify.PubSub, connect: Connect, engine_name: str
) -> None:
    conn = connect()
    conn.listen("c")
    for number in range(4):
        sender.publish("c", frame(number))
        wait_until(conn.poll, "the reference has come")
    assert len(blocks(engine_name)) == 1


def test_what_a_bridge_sends_on_is_a_file(
    sender: pynotify.PubSub, receiver: pynotify.PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_local, "_goes_upstream", lambda *_: True)
    sent = np.asfortranarray(np.arange(40_000.0).reshape(200, 200))
    sender.publish("c", sent)
    (received,) = objects(take(receiver, 1))
    assert isinstance(received, bytes)
    assert np.array_equal(np.load(io.BytesIO(received)), sent)


def test_over_postgresql_it_is_a_file(
    postgres: Server, new_pubsub: NewPubSub, channel: str
) -> None:
    with postgres.connect() as conn, postgres.connect() as other:
        sender, receiver = new_pubsub(conn), new_pubsub(other)
        receiver.subscribe(channel)
        sender.publish(channel, frame(3, 5000))
        (received,) = objects(take(receiver, 1))
        assert number_of(np.load(io.BytesIO(received))) == 3
        with pytest.raises(TypeError, match="cannot be sent"):
            sender.publish(channel, np.array([None]))


def test_payloads_too_short_for_a_reference(
    make_engine: EngineFactory, connect: Connect, new_pubsub: NewPubSub
) -> None:
    engine = make_engine(max_payload=64, queue_pages=1024)
    sender, receiver = new_pubsub(connect(to=engine)), new_pubsub(connect(to=engine))
    receiver.subscribe("c")
    sending = Call(sender.publish, "c", frame(2, 10_000))
    (received,) = objects(take(receiver, 1))
    sending.result()
    assert number_of(received) == 2
    assert in_queue(received)


def test_a_file_of_locks_that_another_thread_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = _memory.LockFile(str(tmp_path / "locks"), create=True)
    call = _memory.fcntl.fcntl

    def closed_meanwhile(*arguments: Any) -> Any:
        locks.close()
        return call(*arguments)

    monkeypatch.setattr(_memory.fcntl, "fcntl", closed_meanwhile)
    locks.drop(1)
    assert not locks.own(1)


def test_closing_while_another_thread_publishes(connect: Connect, engine_name: str) -> None:
    sender = pynotify.PubSub(connect())
    began = threading.Event()

    def send() -> None:
        while True:
            sender.publish("c", frame(1, 20_000))
            began.set()

    sending = Call(send)
    assert began.wait(PATIENCE)
    sender.close()
    assert isinstance(sending.error(), pynotify.InterfaceError)
    pynotify.PubSub(connect()).close()
    assert blocks(engine_name) == []


class Ending:
    """What an arena sees of a transaction."""

    ended = False


@pytest.mark.parametrize("what", ["another thread commits", "a transaction ends"])
def test_what_is_committed_while_the_engine_is_asked_is_not_read_yet(
    new_name: Any, what: str
) -> None:
    """The head is older than that commit, and the tail may have passed it."""
    files = ArrayFiles(new_name(), 1)
    transaction: Any = Ending()
    late: list[Any] = []

    def queue() -> _arena.Queue:
        transaction.ended = True
        while late:
            arena.sent(late.pop())
        return _arena.Queue(10, 10, 1)

    arena = _arena.Arena(files, 10 * BLOCK, queue)
    placed = arena.place(frame(1))
    assert placed is not None
    transaction.ended = False
    if what == "another thread commits":
        late.append(placed[0])
    else:
        arena.sent(placed[0], transaction)
    other = arena.place(frame(2))
    assert other is not None
    assert other[0] is not placed[0]
    third = arena.place(frame(3))
    assert third is not None
    assert third[0] is placed[0]
