"""Random schedules over several connections, compared with a plain Python model."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable

import pytest
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
from receiving import PATIENCE
from reference_model import Message, Model, ModelConnection
from sessions import Heard, LocalSession, RemoteSession, Session, WorkerPool

PLACES = 4
"""Connections at a time; each is of one of two databases and is replaced when it closes."""

places = st.integers(0, PLACES - 1)
channels = st.sampled_from(["a", "b", "c", "é" * 31])
some_channels = st.lists(channels, max_size=3)
some_patterns = st.lists(st.sampled_from(["*", "[ab]", "a", "?", "é*", "c"]), max_size=3)
payloads = st.sampled_from(["", "1", "2", "3", "x" * 3000, "y" * 7999])
some_payloads = st.lists(payloads, max_size=6)
some_headers = st.sampled_from([{}, {}, {"k": "v"}, {"é": "x" * 700, "": ""}])
names = st.sampled_from(["s", "t"])
databases = st.sampled_from(["one", "two"])
limits = st.one_of(st.none(), st.integers(1, 3))

_counter = itertools.count(1)


class Schedule(RuleBasedStateMachine):
    """Every rule does the same to a real connection and to its model."""

    make_session: Callable[..., Session]

    def __init__(self) -> None:
        super().__init__()
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self.name = f"model-{worker}-{os.getpid()}-{next(_counter)}"
        self.engine = pynotify.open(self.name, queue_pages=512)
        self.model = Model()
        self.numbers = itertools.count(1)
        self.real: list[Session] = []
        self.modelled: list[ModelConnection] = []
        self.senders: dict[int, tuple[int, int]] = {}
        self.seq_of_commit: dict[int, int] = {}

    @initialize(databases=st.lists(databases, min_size=PLACES, max_size=PLACES))
    def connect_all(self, databases: list[str]) -> None:
        for database in databases:
            session, model = self.connect(database)
            self.real.append(session)
            self.modelled.append(model)

    def connect(self, database: str) -> tuple[Session, ModelConnection]:
        session = type(self).make_session(self.name, database=database)
        number = next(self.numbers)
        self.senders[number] = (session.pid, session.backend_id)
        return session, self.model.connect(database, number)

    def both(self, place: int) -> tuple[Session, ModelConnection]:
        return self.real[place], self.modelled[place]

    # ---- statements ----------------------------------------------------------------------------

    @rule(place=places, channels=some_channels)
    def listen(self, place: int, channels: list[str]) -> None:
        session, model = self.both(place)
        session.listen(*channels)
        model.listen(*channels)

    @rule(place=places, channels=some_channels)
    def unlisten(self, place: int, channels: list[str]) -> None:
        session, model = self.both(place)
        session.unlisten(*channels)
        model.unlisten(*channels)

    @rule(place=places, patterns=some_patterns)
    def listen_pattern(self, place: int, patterns: list[str]) -> None:
        session, model = self.both(place)
        session.listen_pattern(*patterns)
        model.listen_pattern(*patterns)

    @rule(place=places, patterns=some_patterns)
    def unlisten_pattern(self, place: int, patterns: list[str]) -> None:
        session, model = self.both(place)
        session.unlisten_pattern(*patterns)
        model.unlisten_pattern(*patterns)

    @rule(place=places)
    def unlisten_all(self, place: int) -> None:
        session, model = self.both(place)
        session.unlisten_all()
        model.unlisten_all()

    @rule(place=places, channel=channels, payload=payloads, headers=some_headers)
    def notify(self, place: int, channel: str, payload: str, headers: dict[str, str]) -> None:
        session, model = self.both(place)
        session.notify(channel, payload, headers=headers)
        model.notify(channel, payload, headers)

    @rule(place=places, channel=channels, payloads=some_payloads, headers=some_headers)
    def notify_many(
        self, place: int, channel: str, payloads: list[str], headers: dict[str, str]
    ) -> None:
        session, model = self.both(place)
        alone = not model.in_transaction
        queued = session.notify_many(channel, payloads, headers=headers)
        model.notify_many(channel, payloads, headers)
        if alone:
            assert queued == len(set(payloads))

    # ---- transactions --------------------------------------------------------------------------

    @rule(place=places)
    def begin_or_end(self, place: int) -> None:
        session, model = self.both(place)
        if not model.in_transaction:
            session.begin()
            model.begin()
        else:
            session.commit()
            model.commit()

    @rule(place=places)
    def rollback(self, place: int) -> None:
        session, model = self.both(place)
        if model.in_transaction:
            session.rollback()
            model.rollback()
        else:
            with pytest.raises(pynotify.NoActiveTransaction):
                session.rollback()

    @rule(place=places, name=names)
    def savepoint(self, place: int, name: str) -> None:
        session, model = self.both(place)
        if model.in_transaction:
            session.savepoint(name)
            model.savepoint(name)

    @rule(place=places, name=names, method=st.sampled_from(["release", "rollback_to"]))
    def end_savepoint(self, place: int, name: str, method: str) -> None:
        session, model = self.both(place)
        if name in model.savepoint_names():
            getattr(session, method)(name)
            getattr(model, method)(name)
        elif model.in_transaction:
            with pytest.raises(pynotify.InvalidSavepoint):
                getattr(session, method)(name)
            session.rollback()
            model.rollback()

    # ---- receiving -----------------------------------------------------------------------------

    @rule(place=places, limit=limits)
    def poll(self, place: int, limit: int | None) -> None:
        session, model = self.both(place)
        heard = session.step("poll", limit)
        self.compare(heard, model.poll(limit))

    @rule(place=places)
    def wait(self, place: int) -> None:
        session, model = self.both(place)
        if model.in_transaction:
            with pytest.raises(pynotify.ActiveTransaction):
                session.wait(0)
        elif model.inbox:
            assert session.wait(PATIENCE) is True

    def compare(self, heard: list[Heard], expected: list[Message]) -> None:
        assert [(each.channel, each.payload, each.pattern, each.headers) for each in heard] == [
            (each.channel, each.payload, each.pattern, each.headers) for each in expected
        ]
        for real, model in zip(heard, expected, strict=True):
            assert (real.pid, real.backend_id) == self.senders[model.sender]
            assert self.seq_of_commit.setdefault(model.commit, real.seq) == real.seq
        in_order = [seq for _commit, seq in sorted(self.seq_of_commit.items())]
        assert in_order == sorted(set(in_order))

    # ---- connections ---------------------------------------------------------------------------

    @rule(place=places, database=databases)
    def close_and_connect_again(self, place: int, database: str) -> None:
        session, model = self.both(place)
        session.close()
        model.close()
        self.real[place], self.modelled[place] = self.connect(database)

    # ---- what always holds ---------------------------------------------------------------------

    @precondition(lambda self: self.modelled)
    @invariant()
    def same_registrations(self) -> None:
        for session, model in zip(self.real, self.modelled, strict=True):
            assert session.listening_channels() == model.listening
            assert session.listening_patterns() == model.patterns

    @precondition(lambda self: self.modelled)
    @invariant()
    def same_figures(self) -> None:
        stat = self.engine.stat()
        assert stat.notifications == self.model.notifications
        rows = {row.backend_id: row for row in stat.backends}
        assert len(rows) == PLACES
        for session, model in zip(self.real, self.modelled, strict=True):
            row = rows[session.backend_id]
            assert row.in_transaction == model.in_transaction
            assert row.database == model.database
            assert row.channels == len(model.listening) + len(model.patterns)

    def teardown(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(pynotify.unlink, self.name, missing_ok=True, force=True)
            stack.callback(self.engine.close)
            for session, model in zip(self.real, self.modelled, strict=False):
                stack.callback(session.close)
                if model.in_transaction:
                    session.rollback()
                    model.rollback()
                self.compare(session.step("poll"), model.poll(None))
            report = self.engine.check()
            assert report.ok, report.problems


def run(make: Callable[..., Session], examples: int, steps: int) -> None:
    machine = type("Schedule", (Schedule,), {"make_session": staticmethod(make)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_schedules_in_one_process() -> None:
    run(LocalSession, examples=60, steps=60)


def test_schedules_over_processes(worker_pool: WorkerPool) -> None:
    """Every place of the schedule has a process of its own."""
    workers = [worker_pool.take() for _ in range(PLACES)]
    turn = itertools.cycle(workers)

    def make(name: str, **options: str) -> RemoteSession:
        return RemoteSession(next(turn), name, **options)

    try:
        run(make, examples=10, steps=40)
    finally:
        for worker in workers:
            worker_pool.give_back(worker)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_many_schedules() -> None:
    run(LocalSession, examples=1000, steps=100)
