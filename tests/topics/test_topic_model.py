"""Random schedules of a topic with two channels, compared with a plain Python model."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field, replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import pynotify

CHANNELS = ("one", "two")
MOST = 3
ATTEMPTS = 3

which = st.integers(0, 1)
picks = st.integers(0, 100)
answers = st.sampled_from(["finish", "requeue", "later", "dead_letter", "touch"])
_counter = itertools.count(1)


@dataclass
class Delivered:
    """A message in a channel of the model."""

    id: str
    body: bytes
    attempts: int = 0
    #: Its place in the queue, which it keeps until it is requeued.
    order: int = field(default_factory=itertools.count().__next__)


@dataclass
class ModelChannel:
    paused: bool = False
    ready: list[Delivered] = field(default_factory=list)
    deferred: list[Delivered] = field(default_factory=list)
    #: In the order of their delivery.
    in_flight: list[tuple[Delivered, pynotify.Message]] = field(default_factory=list)
    finished: int = 0
    requeued: int = 0
    dropped: int = 0
    message_count: int = 0

    def put_back(self, delivered: Delivered, where: list[Delivered]) -> None:
        self.requeued += 1
        if delivered.attempts >= ATTEMPTS:
            self.dropped += 1
        else:
            where.append(replace(delivered, order=Delivered("", b"").order))


class Schedule(RuleBasedStateMachine):
    """Every rule does the same to the topic and to its model.  One transaction may be open."""

    def __init__(self) -> None:
        super().__init__()
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self.name = f"topicmodel-{worker}-{os.getpid()}-{next(_counter)}"
        self.engine = pynotify.open(self.name)
        self.conn = self.engine.connect()
        self.topic = self.conn.topic("t")
        self.numbers = itertools.count(1)
        self.paused = False
        #: In the topic itself, while it is paused: those that are deferred have True.
        self.kept: list[tuple[Delivered, bool]] = []
        self.published = 0

    @initialize()
    def make(self) -> None:
        self.channels = [self.topic.channel(name) for name in CHANNELS]
        self.model = [ModelChannel() for _ in CHANNELS]
        self.consumers = [self.consumer(index) for index in range(2)]

    def consumer(self, index: int) -> pynotify.Consumer:
        return self.channels[index].consumer(max_in_flight=MOST, max_attempts=ATTEMPTS)

    def arrive(self, delivered: Delivered, later: bool) -> None:
        for channel in self.model:
            copy = Delivered(delivered.id, delivered.body)
            (channel.deferred if later else channel.ready).append(copy)
            channel.message_count += 1

    def publish_one(self, body: bytes, message_id: str, later: bool) -> None:
        self.published += 1
        if self.paused:
            self.kept.append((Delivered(message_id, body), later))
        else:
            self.arrive(Delivered(message_id, body), later)

    @rule(later=st.booleans())
    def publish(self, later: bool) -> None:
        body = b"%d" % next(self.numbers)
        self.publish_one(body, self.topic.publish(body, delay=3600 if later else 0), later)

    @rule(count=st.integers(0, 5))
    def publish_many(self, count: int) -> None:
        bodies = [b"%d" % next(self.numbers) for _ in range(count)]
        for body, number in zip(bodies, self.topic.publish_many(bodies), strict=True):
            self.publish_one(body, number, False)

    @rule(count=st.integers(0, 3), index=which, pick=picks, commits=st.booleans(),
          answer=st.sampled_from(["finish", "requeue", "none"]))  # fmt: skip
    def transaction(self, count: int, index: int, pick: int, commits: bool, answer: str) -> None:
        """Publish some and answer one, together."""
        channel = self.model[index]
        chosen = channel.in_flight[pick % len(channel.in_flight)] if channel.in_flight else None
        with self.conn.transaction():
            bodies = [b"%d" % next(self.numbers) for _ in range(count)]
            ids = [self.topic.publish(body) for body in bodies]
            if chosen and answer != "none":
                getattr(chosen[1], answer)()
            if not commits:
                raise pynotify.Rollback
        if not commits:
            return
        for body, number in zip(bodies, ids, strict=True):
            self.publish_one(body, number, False)
        if chosen and answer != "none":
            channel.in_flight.remove(chosen)
            if answer == "finish":
                channel.finished += 1
            else:
                channel.put_back(chosen[0], channel.ready)

    @rule(index=which)
    def get(self, index: int) -> None:
        channel = self.model[index]
        if channel.paused or not channel.ready or len(channel.in_flight) == MOST:
            try:
                found = self.consumers[index].get(0)
            except pynotify.Timeout:
                return
            raise AssertionError(f"{found} of an empty channel")
        message = self.consumers[index].get(0)
        expected = channel.ready.pop(0)
        expected.attempts += 1
        assert (message.id, message.body) == (expected.id, expected.body)
        assert message.attempts == expected.attempts
        channel.in_flight.append((expected, message))

    @precondition(lambda self: any(channel.in_flight for channel in self.model))
    @rule(index=which, pick=picks, answer=answers)
    def answer(self, index: int, pick: int, answer: str) -> None:
        channel = self.model[index]
        if not channel.in_flight:
            return
        entry = channel.in_flight[pick % len(channel.in_flight)]
        delivered, message = entry
        if answer == "touch":
            message.touch()
            return
        channel.in_flight.remove(entry)
        if answer == "finish":
            message.finish()
            channel.finished += 1
        elif answer == "dead_letter":
            message.dead_letter()
            channel.dropped += 1
        elif answer == "later":
            message.requeue(3600)
            channel.put_back(delivered, channel.deferred)
        else:
            message.requeue()
            channel.put_back(delivered, channel.ready)
        try:
            message.finish()
        except pynotify.MessageNotInFlight:
            return
        raise AssertionError("it was answered twice")

    @rule(index=which)
    def close_consumer(self, index: int) -> None:
        """What it had goes to the head, in the old order."""
        self.consumers[index].close()
        channel = self.model[index]
        for delivered, _ in channel.in_flight:
            if delivered.attempts >= ATTEMPTS:
                channel.dropped += 1
            else:
                channel.ready.append(delivered)
        channel.in_flight.clear()
        channel.ready.sort(key=lambda each: each.order)
        self.consumers[index] = self.consumer(index)

    @rule(index=which)
    def empty(self, index: int) -> None:
        self.channels[index].empty()
        channel = self.model[index]
        for part in (channel.ready, channel.deferred, channel.in_flight):
            part.clear()

    @rule(index=which, pick=picks)
    def cancel(self, index: int, pick: int) -> None:
        """Gone where it is deferred everywhere that has it."""
        deferred = self.model[index].deferred
        if not deferred:
            return
        wanted = deferred[pick % len(deferred)].id
        others = [
            each.id
            for channel in self.model
            for each in (*channel.ready, *(pair[0] for pair in channel.in_flight))
        ]
        can = wanted not in others
        assert self.topic.cancel(wanted) == can
        if can:
            for channel in self.model:
                channel.deferred[:] = [each for each in channel.deferred if each.id != wanted]

    @rule(index=which)
    def pause_or_unpause(self, index: int) -> None:
        channel = self.model[index]
        channel.paused = not channel.paused
        (self.channels[index].pause if channel.paused else self.channels[index].unpause)()

    @rule()
    def pause_or_unpause_topic(self) -> None:
        self.paused = not self.paused
        if self.paused:
            self.topic.pause()
        else:
            self.topic.unpause()
            for delivered, later in self.kept:
                self.arrive(delivered, later)
            self.kept.clear()

    @invariant()
    def statistics_agree(self) -> None:
        stats = self.topic.stats()
        assert stats.message_count == self.published
        assert stats.depth == len(self.kept)
        assert stats.deferred == sum(later for _, later in self.kept)
        assert [channel.name for channel in stats.channels] == list(CHANNELS)
        for real, model in zip(stats.channels, self.model, strict=True):
            # A consumer fetches ahead, which counts as in flight.
            assert real.depth + real.in_flight == len(model.ready) + len(model.in_flight)
            assert len(model.in_flight) <= real.in_flight <= MOST
            assert real.deferred == len(model.deferred)
            assert real.finished == model.finished
            assert real.requeued == model.requeued
            assert real.dropped == model.dropped
            assert real.message_count == model.message_count

    @invariant()
    def ready_ones_agree(self) -> None:
        for channel, model in zip(self.channels, self.model, strict=True):
            peeked = [each.body for each in channel.peek(1000) if each.state == "ready"]
            expected = [each.body for each in model.ready]
            assert peeked == expected[len(expected) - len(peeked) :]

    def teardown(self) -> None:
        assert self.engine.check().problems == []
        for consumer in self.consumers:
            consumer.close()
        self.conn.close()
        self.engine.close()
        pynotify.unlink(self.name)


def test_topics_do_as_the_model() -> None:
    run_state_machine_as_test(
        Schedule,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
