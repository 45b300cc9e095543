"""A rig: one peer with its sender and receiver processes, ready for any number of passes.

The parent only talks over pipes, and is silent while a pass runs.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Self

from bench.peer import (
    END_OF_PROBES,
    PAYLOAD_BYTES,
    PROBE,
    Peer,
    Receiver,
    Sender,
    message_number,
    payload,
)

# Forked, so that pipes and queues of the standard library reach the children as they are.
_CONTEXT = multiprocessing.get_context("fork")
_VERIFIED = 2_000
_PROBE_INTERVAL = 0.02
_PATIENCE = 120.0


class Lost(Exception):
    """A receiver did not get what was sent: there is no figure."""


class Child:
    """A forked process that is told by messages what to do."""

    def __init__(self, body: Callable[[Connection], None]) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self.process: BaseProcess = _CONTEXT.Process(target=body, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, *command: Any) -> None:
        self.pipe.send(command)

    def answer(self) -> Any:
        if not self.pipe.poll(_PATIENCE):
            raise Lost(f"no answer from process {self.process.pid}")
        return self.pipe.recv()

    def end(self) -> None:
        self.ask("quit")
        self.process.join(_PATIENCE)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()


class Rig:
    """`with Rig(peer, listeners=1) as rig: rig.rate(100_000)`."""

    def __init__(self, peer: Peer, *, listeners: int = 1, senders: int = 1) -> None:
        self.peer = peer
        self.listeners = listeners
        self._receivers: list[Child] = []
        self._senders: list[Child] = []
        self._sender_count = senders
        #: Messages a second that the senders of the last pass sent, by their own time.
        self.sending_rate = 0.0

    def __enter__(self) -> Self:
        self.peer.prepare()
        self._receivers = [
            Child(lambda pipe: _receiver_main(pipe, self.peer.receiver))
            for _ in range(self.listeners)
        ]
        for child in self._receivers:
            child.answer()
        self._senders = [
            Child(lambda pipe: _sender_main(pipe, self.peer.sender))
            for _ in range(self._sender_count)
        ]
        for child in self._senders:
            child.answer()
        self._wait_for_subscriptions()
        self._verify()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for child in (*self._senders, *self._receivers):
            if error is not None:
                child.process.kill()
            child.end() if error is None else child.process.join()
        self.peer.dispose()

    def rate(self, count: int) -> float:
        """Deliveries a second, from the first send until the last receiver has everything."""
        share = count // len(self._senders)
        total = share * len(self._senders)
        self._ask_all(self._receivers, "receive", total)
        self._ask_all(self._senders, "send", share)
        for child in self._senders:
            child.ask("go")
        times = [child.answer() for child in self._senders]
        begin = min(began for began, _ in times)
        self.sending_rate = total / (max(ended for _, ended in times) - begin) * 1e9
        ends = []
        for child in self._receivers:
            end, last = child.answer()
            if len(self._senders) == 1 and message_number(last) != total - 1:
                raise Lost(f"{self.peer.name}: the last message is number {message_number(last)}")
            ends.append(end)
        elapsed: int = max(ends) - begin
        return total * self.listeners / elapsed * 1e9

    def latencies(self, count: int, pause: float) -> list[int]:
        """Sorted ns from before the send until the message is in hand; `pause` s between sends."""
        (receiver,), (sender,) = self._receivers, self._senders
        self._ask_all([receiver], "latency", count)
        sender.ask("stamped", count, pause)
        sender.answer()
        answer: list[int] = receiver.answer()
        return sorted(answer)

    def pin(self, sender_cpu: int, receiver_cpu: int) -> None:
        """To the nth CPUs that this process may use, modulo their number."""
        allowed = sorted(os.sched_getaffinity(0))
        self._ask_all(self._senders, "pin", allowed[sender_cpu % len(allowed)])
        self._ask_all(self._receivers, "pin", allowed[receiver_cpu % len(allowed)])

    @staticmethod
    def _ask_all(children: Sequence[Child], *command: Any) -> None:
        """Each answers when it stands ready."""
        for child in children:
            child.ask(*command)
        for child in children:
            child.answer()

    def _wait_for_subscriptions(self) -> None:
        """Some peers subscribe in the background: probe until everybody has heard something."""
        for child in self._receivers:
            child.ask("probes")
        deaf = list(self._receivers)
        deadline = time.monotonic() + _PATIENCE
        while deaf:
            self._senders[0].ask("one", PROBE)
            self._senders[0].answer()
            time.sleep(_PROBE_INTERVAL)
            deaf = [child for child in deaf if not child.pipe.poll()]
            if time.monotonic() > deadline:
                raise Lost(f"{self.peer.name}: {len(deaf)} receivers hear nothing")
        for child in self._receivers:
            child.answer()
        self._senders[0].ask("one", END_OF_PROBES)
        self._senders[0].answer()
        for child in self._receivers:
            child.answer()

    def _verify(self) -> None:
        """A pass that is not timed: every byte, in order, at every receiver."""
        self._ask_all(self._receivers, "verify", _VERIFIED)
        self._ask_all(self._senders[:1], "send", _VERIFIED)
        self._senders[0].ask("go")
        self._senders[0].answer()
        for child in self._receivers:
            if not child.answer():
                raise Lost(f"{self.peer.name}: what arrives is not what was sent")


def _sender_main(pipe: Connection, make: Callable[[], Sender]) -> None:
    sender = make()
    pipe.send("ready")
    payloads: list[bytes] = []
    while (command := pipe.recv())[0] != "quit":
        what, *arguments = command
        if what == "send":
            (count,) = arguments
            if len(payloads) != count:
                payloads = [payload(i) for i in range(count)]
            pipe.send("ready")
            pipe.recv()
            begin = time.monotonic_ns()
            sender.send_all(payloads)
            pipe.send((begin, time.monotonic_ns()))
        elif what == "stamped":
            _send_stamped(sender, *arguments)
            pipe.send("sent")
        elif what == "one":
            sender.send(payload(arguments[0]))
            pipe.send("sent")
        else:
            pin_all_threads(arguments[0])
            pipe.send("pinned")
    sender.close()


def _send_stamped(sender: Sender, count: int, pause: float) -> None:
    rest = bytes(PAYLOAD_BYTES - 8)
    send = sender.send
    for _ in range(count):
        time.sleep(pause)
        send(time.monotonic_ns().to_bytes(8, "little") + rest)


def _receiver_main(pipe: Connection, make: Callable[[], Receiver]) -> None:
    receiver = make()
    pipe.send("ready")
    while (command := pipe.recv())[0] != "quit":
        what, *arguments = command
        if what == "receive":
            pipe.send("ready")
            last = receiver.receive(arguments[0])
            pipe.send((time.monotonic_ns(), last))
        elif what == "verify":
            pipe.send("ready")
            got = receiver.collect(arguments[0])
            pipe.send(got == [payload(i) for i in range(arguments[0])])
        elif what == "latency":
            pipe.send("ready")
            pipe.send(_take_latencies(receiver, arguments[0]))
        elif what == "probes":
            _read_probes(pipe, receiver)
        else:
            pin_all_threads(arguments[0])
            pipe.send("pinned")
    receiver.close()


def _take_latencies(receiver: Receiver, count: int) -> list[int]:
    taken: list[tuple[int, bytes]] = []
    clock = time.monotonic_ns
    for data in receiver.stream():
        taken.append((clock(), data))
        if len(taken) == count:
            break
    return [now - message_number(data) for now, data in taken]


def _read_probes(pipe: Connection, receiver: Receiver) -> None:
    heard = False
    for data in receiver.stream():
        if not heard:
            heard = True
            pipe.send("heard")
        if message_number(data) == END_OF_PROBES:
            pipe.send("ready")
            return


def pin_all_threads(cpu: int) -> None:
    """Those that a peer has started for itself as well."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {cpu})
