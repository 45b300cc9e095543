"""A rig: what is measured with its processes, ready for any number of passes.

The parent only talks over pipes, and is silent while a pass runs.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Self

from bench.peer import (
    END_OF_PROBES,
    PAYLOAD_BYTES,
    PROBE,
    Part,
    Peer,
    Receiver,
    Sender,
    message_number,
    payload,
)

# Forked, so that pipes and queues of the standard library reach the children as they are.
CONTEXT = multiprocessing.get_context("fork")
PAUSE = 0.001  # s between two sends to a receiver that is to sleep
_VERIFIED = 2_000
_PROBE_INTERVAL = 0.02
_PATIENCE = 120.0


class Lost(Exception):
    """A receiver did not get what was sent: there is no figure."""


class Child:
    """A forked process that is told by messages what to do."""

    def __init__(self, body: Callable[[Connection], None]) -> None:
        self.pipe, theirs = CONTEXT.Pipe()
        self.process: BaseProcess = CONTEXT.Process(target=body, args=(theirs,), daemon=True)
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


def serve(pipe: Connection, **commands: Callable[..., object]) -> None:
    """In a child: says that it is ready, then answers commands until it is told to quit."""
    commands["pin"] = pin_all_threads
    pipe.send("ready")
    while (command := pipe.recv())[0] != "quit":
        what, *arguments = command
        pipe.send(commands[what](*arguments))


def pin_all_threads(cpu: int) -> None:
    """To the nth CPU that this process was given, modulo their number; also the threads that a
    peer has started for itself."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {_CPUS[cpu % len(_CPUS)]})


_CPUS = sorted(os.sched_getaffinity(0))


class Crew:
    """Receivers and senders; a subclass starts them when it is entered."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.receivers: list[Child] = []
        self.senders: list[Child] = []

    def __enter__(self) -> Self:
        self.part.prepare()
        self.start()
        return self

    @abstractmethod
    def start(self) -> None:
        """Start the processes, the receivers first."""

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        for child in (*self.senders, *self.receivers):
            if error is not None:
                child.process.kill()
            child.end() if error is None else child.process.join()
        self.part.dispose()

    @staticmethod
    def children(bodies: Iterable[Callable[[Connection], None]]) -> list[Child]:
        """They start side by side; ready when this returns."""
        children = [Child(body) for body in bodies]
        for child in children:
            child.answer()
        return children

    def pin(self, sender_cpu: int, receiver_cpu: int) -> None:
        """To the nth CPUs that this process may use, modulo their number."""
        ask_all(self.senders, "pin", sender_cpu)
        ask_all(self.receivers, "pin", receiver_cpu)


class LatencyCrew(Crew):
    """One that measures each message."""

    @abstractmethod
    def latencies(self, count: int) -> list[int]:
        """Sorted ns from before the send until the message is in hand, `PAUSE` between sends."""


def ask_all(children: Sequence[Child], *command: Any) -> list[Any]:
    """The answer of each child, which most give when they stand ready."""
    for child in children:
        child.ask(*command)
    return [child.answer() for child in children]


class Rig(LatencyCrew):
    """`with Rig(peer, listeners=1) as rig: rig.rate(100_000)`."""

    def __init__(
        self, peer: Peer, *, listeners: int = 1, senders: int = 1, verified: int = _VERIFIED
    ) -> None:
        super().__init__(peer)
        self.peer = peer
        self._verified = verified
        self._counts = listeners, senders
        #: Messages a second that the senders of the last pass sent, by their own time.
        self.sending_rate = 0.0

    def start(self) -> None:
        listeners, senders = self._counts
        self.receivers = self.children([self._receive] * listeners)
        self.senders = self.children([self._send] * senders)
        self._wait_for_subscriptions()
        self._verify()

    def _send(self, pipe: Connection) -> None:
        _sender_main(pipe, self.peer.sender())

    def _receive(self, pipe: Connection) -> None:
        _receiver_main(pipe, self.peer.receiver())

    def rate(self, count: int) -> float:
        """Deliveries a second, from the first send until the last receiver has everything."""
        share = count // len(self.senders)
        total = share * len(self.senders)
        ask_all(self.receivers, "receive", total)
        ask_all(self.senders, "send", share)
        times = ask_all(self.senders, "go")
        begin = min(began for began, _ in times)
        self.sending_rate = total / (max(ended for _, ended in times) - begin) * 1e9
        ends = []
        for child in self.receivers:
            end, last = child.answer()
            if len(self.senders) == 1 and message_number(last) != total - 1:
                raise Lost(f"{self.peer.name}: the last message is number {message_number(last)}")
            ends.append(end)
        elapsed: int = max(ends) - begin
        return total * len(self.receivers) / elapsed * 1e9

    def latencies(self, count: int) -> list[int]:
        (receiver,), (sender,) = self.receivers, self.senders
        ask_all([receiver], "latency", count)
        ask_all([sender], "stamped", count)
        answer: list[int] = receiver.answer()
        return sorted(answer)

    def _wait_for_subscriptions(self) -> None:
        """Some peers subscribe in the background: probe until each has heard something."""
        for child in self.receivers:
            child.ask("probes")
        deaf = list(self.receivers)
        deadline = time.monotonic() + _PATIENCE
        while deaf:
            ask_all(self.senders[:1], "one", PROBE)
            time.sleep(_PROBE_INTERVAL)
            deaf = [child for child in deaf if not child.pipe.poll()]
            if time.monotonic() > deadline:
                raise Lost(f"{self.peer.name}: {len(deaf)} receivers hear nothing")
        for child in self.receivers:
            child.answer()
        ask_all(self.senders[:1], "one", END_OF_PROBES)
        for child in self.receivers:
            child.answer()

    def _verify(self) -> None:
        """A pass that is not timed: every byte, in order, at every receiver."""
        ask_all(self.receivers, "verify", self._verified)
        ask_all(self.senders[:1], "send", self._verified)
        ask_all(self.senders[:1], "go")
        for child in self.receivers:
            if not child.answer():
                raise Lost(f"{self.peer.name}: what arrives is not what was sent")


def _sender_main(pipe: Connection, sender: Sender) -> None:
    payloads: list[bytes] = []

    def prepare(count: int) -> None:
        if len(payloads) != count:
            payloads[:] = [payload(i) for i in range(count)]

    def go() -> tuple[int, int]:
        begin = time.monotonic_ns()
        sender.send_all(payloads)
        return begin, time.monotonic_ns()

    serve(
        pipe,
        send=prepare,
        go=go,
        stamped=partial(_send_stamped, sender),
        one=lambda number: sender.send(payload(number)),
    )
    sender.close()


def _send_stamped(sender: Sender, count: int) -> None:
    rest = bytes(PAYLOAD_BYTES - 8)
    send = sender.send
    for _ in range(count):
        time.sleep(PAUSE)
        send(time.monotonic_ns().to_bytes(8, "little") + rest)


def _receiver_main(pipe: Connection, receiver: Receiver) -> None:
    """Each command is answered twice: when the receiver stands ready, and at the end."""

    def receive(count: int) -> tuple[int, bytes]:
        pipe.send("ready")
        last = receiver.receive(count)
        return time.monotonic_ns(), last

    def verify(count: int) -> bool:
        pipe.send("ready")
        return receiver.collect(count) == [payload(i) for i in range(count)]

    def latency(count: int) -> list[int]:
        pipe.send("ready")
        return _take_latencies(receiver, count)

    def probes() -> None:
        for heard, data in enumerate(receiver.stream()):
            if not heard:
                pipe.send("heard")
            if message_number(data) == END_OF_PROBES:
                return

    serve(pipe, receive=receive, verify=verify, latency=latency, probes=probes)
    receiver.close()


def _take_latencies(receiver: Receiver, count: int) -> list[int]:
    taken: list[tuple[int, bytes]] = []
    clock = time.monotonic_ns
    for data in receiver.stream():
        taken.append((clock(), data))
        if len(taken) == count:
            break
    return [now - message_number(data) for now, data in taken]
