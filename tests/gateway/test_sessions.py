"""What a client and the other processes of a segment see of each other."""

from __future__ import annotations

import os
import resource
import select
import struct
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import pynotify
from gateway.conftest import NewGateway
from gateway.gateways import Running
from gateway.wire import (
    CANCEL,
    FLUSH,
    GSS,
    PROTOCOL,
    SSL,
    SYNC,
    Client,
    bind,
    execute,
    message,
    parse,
    query,
    startup,
    text,
)
from locked import LockHolder
from receiving import PATIENCE, receive, wait_until
from sessions import Connect, EngineFactory

FIRST_PID = 1 << 22


def code_of(answers: list[tuple[object, ...]]) -> str:
    """Of the first error."""
    return next(str(answer[1]["C"]) for answer in answers if answer[0] == "E")  # type: ignore[index]


# ---- beginning ----------------------------------------------------------------------------------


def test_parameters_that_drivers_look_at(gateway: Running) -> None:
    with gateway.client(application_name="me") as client:
        assert client.parameters["server_version"].startswith("15.0")
        expected = {
            "application_name": "me",
            "client_encoding": "UTF8",
            "DateStyle": "ISO, MDY",
            "integer_datetimes": "on",
            "server_encoding": "UTF8",
            "session_authorization": "me",
            "standard_conforming_strings": "on",
            "is_superuser": "off",
            "in_hot_standby": "off",
            "IntervalStyle": "postgres",
            "TimeZone": "UTC",
            "default_transaction_read_only": "off",
        }
        assert expected.items() <= client.parameters.items()
        assert "crdb_version" not in client.parameters


@pytest.mark.parametrize("number", [SSL, GSS])
def test_encryption_is_declined_and_the_connection_goes_on(gateway: Running, number: int) -> None:
    with Client(gateway.path) as client:
        client.send(struct.pack("!II", 8, number))
        assert client.byte() == b"N"
        assert client.start("me", "default")[-1] == ("Z", "I")


@pytest.mark.parametrize("minor", [2, 9999])
def test_a_newer_minor_version_is_negotiated(gateway: Running, minor: int) -> None:
    with Client(gateway.path) as client:
        more = {"_pq_.some": "1", "user": "me", "database": "default"}
        client.send(startup(PROTOCOL | minor, **more))
        answers = client.until_ready()
        assert answers[0] == ("v", PROTOCOL, ["_pq_.some"])
        assert answers[-1] == ("Z", "I")


@pytest.mark.parametrize("major", [2, 4])
def test_another_major_version_is_refused(gateway: Running, major: int) -> None:
    with Client(gateway.path) as client:
        client.send(startup(major << 16, user="me"))
        assert code_of(client.until_ready()) == "0A000"


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.0\r\n\r\n", struct.pack("!I", 10_001), struct.pack("!II", 7, 0)]
)
def test_garbage_closes_the_connection_without_a_word(gateway: Running, garbage: bytes) -> None:
    with Client(gateway.path) as client:
        client.send(garbage)
        assert client.at_end()


def test_a_message_may_come_byte_by_byte(gateway: Running) -> None:
    with Client(gateway.path) as client:
        for byte in startup(user="me", database="default") + query("SELECT 1"):
            client.send(bytes([byte]))
        client.until_ready()
        assert ("D", [b"1"]) in client.until_ready()


def test_what_is_refused_and_why(gateway: Running) -> None:
    with Client(gateway.path) as client:
        client.send(startup(database="default"))
        assert code_of(client.until_ready()) == "28000"
    with Client(gateway.path) as client:
        answers = client.start("me", "nope")
        assert code_of(answers) == "3D000"
        assert '"default"' in answers[-1][1]["H"]
    with Client(gateway.path) as client:
        assert code_of(client.start("me", "default", replication="database")) == "0A000"
    with Client(gateway.path) as client:
        assert code_of(client.start("me", "default", client_encoding="latin1")) == "0A000"
    with Client(gateway.path) as client:
        assert code_of(client.start("me", "default", nope="1")) == "42704"
    wait_until(lambda: gateway.gateway.stat().clients == 0, "all are gone")
    assert gateway.gateway.stat().refused == 5


def test_a_peer_that_says_nothing(new_gateway: NewGateway) -> None:
    """Nor half of a startup message: it is told, and closed."""
    gateway = new_gateway(authentication_timeout=1)
    with Client(gateway.path) as silent, Client(gateway.path) as slow:
        slow.send(startup(user="me", database="default")[:-1])
        for client in (silent, slow):
            (answer,) = client.until_ready()
            assert answer[1]["C"] == "57014"
            assert "authentication due to timeout" in answer[1]["M"]


def test_peers_that_say_nothing_are_few(gateway: Running) -> None:
    """They take a quarter of the descriptors at most, and none of those that have spoken."""
    most = min(256, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
    with ExitStack() as stack:
        first = stack.enter_context(gateway.client())
        silent = [stack.enter_context(Client(gateway.path)) for _ in range(most)]
        speaking = stack.enter_context(Client(gateway.path))
        (answer,) = silent[0].until_ready()
        assert answer[1]["C"] == "53300"
        assert "not sent a startup message" in answer[1]["H"]
        for client in (speaking, silent[1]):
            assert client.start("me", "default")[-1] == ("Z", "I")
        stack.enter_context(Client(gateway.path))
        stack.enter_context(Client(gateway.path))
        for client in (first, speaking, silent[1]):
            assert client.ask("SELECT 1")[-1] == ("Z", "I")
    assert gateway.gateway.stat().refused == 1


def test_options_of_the_environment(gateway: Running) -> None:
    options = "-c statement_timeout=5s --application-name=a\\ b"
    with gateway.client(options=options) as client:
        assert ("D", [b"5s"]) in client.ask("SHOW statement_timeout")
        assert ("D", [b"a b"]) in client.ask("SHOW application_name")
        client.ask("SET statement_timeout = 1")
        client.ask("RESET ALL")
        assert ("D", [b"5s"]) in client.ask("SHOW statement_timeout")


def test_databases_are_name_spaces(new_gateway: NewGateway, connect: Connect) -> None:
    gateway = new_gateway(databases=["one"], maps={"postgres": "default", "alias": "one"})
    with (
        gateway.client("one") as one,
        gateway.client("alias") as alias,
        gateway.client("postgres") as other,
    ):
        for client in (one, alias, other):
            client.ask("LISTEN a")
        one.ask("NOTIFY a, 'from one'")
        assert alias.notification().payload == "from one"
        other.ask("NOTIFY a, 'from other'")
        assert other.ask("SELECT 1")[-1] == ("Z", "I")
        assert one.ask("SELECT 1")[0][0] == "T", "nothing of another database"
        assert ("D", [b"alias"]) in alias.ask("SELECT current_database()")
    with Client(gateway.path) as client:
        assert code_of(client.start("me", "default")) == "3D000"


def test_any_database_is_served_if_asked(new_gateway: NewGateway) -> None:
    with new_gateway(databases=["*"]).client("whatever") as client:
        assert client.ask("LISTEN a")[-1] == ("Z", "I")


def test_no_slot_is_left(new_gateway: NewGateway, make_engine: EngineFactory) -> None:
    gateway = new_gateway(make_engine(max_backends=1))
    with gateway.client():
        with Client(gateway.path) as client:
            answers = client.start("me", "default")
        assert code_of(answers) == "53300"
        assert answers[-1][1]["M"] == "sorry, too many clients already"


# ---- notifications ------------------------------------------------------------------------------


def test_clients_and_processes_hear_each_other(
    engine: pynotify.Engine, new_gateway: NewGateway, connect: Connect
) -> None:
    gateway, native = new_gateway(engine), connect(to=engine)
    native.listen("a")
    with gateway.client() as client:
        client.ask("LISTEN a")
        client.ask("NOTIFY a, 'hello'")
        assert client.ask("SELECT pg_backend_pid()")[1] == ("D", [str(client.pid).encode()])
        (heard,) = receive(native, 1)
        assert (heard.channel, heard.payload, heard.pid) == ("a", "hello", client.pid)
        native.notify("a", "back")
        assert client.notification() == (os.getpid(), "a", "back")


def test_a_star_is_a_letter_of_a_channel_and_clients_are_heard_by_patterns(
    engine: pynotify.Engine, new_gateway: NewGateway, connect: Connect
) -> None:
    """PostgreSQL has no patterns."""
    gateway, native = new_gateway(engine), connect(to=engine)
    with gateway.client() as client:
        client.ask('LISTEN "a*"')
        native.listen_pattern("a*")
        client.ask("NOTIFY ab, 'not for it'")
        native.notify("a*", "for both")
        assert client.notification() == (os.getpid(), "a*", "for both")
        assert [(m.channel, m.pattern) for m in receive(native, 2)] == [("ab", "a*"), ("a*", "a*")]
        assert native.channels() == {"a*": 1}
        client.ask("UNLISTEN *")
        assert native.patterns() == {"a*": 1}


def test_pids_of_clients_are_never_those_of_processes_and_differ(gateway: Running) -> None:
    pids = set()
    for _ in range(50):
        with gateway.client() as client, gateway.client() as other:
            pids |= {client.pid, other.pid}
    assert len(pids) == 100
    assert min(pids) > FIRST_PID
    assert max(pids) < 1 << 31


def test_pids_differ_between_gateways_of_a_segment(
    engine: pynotify.Engine, new_gateway: NewGateway
) -> None:
    first, second = new_gateway(engine), new_gateway(engine)
    with first.client() as one, second.client() as two:
        assert one.pid != two.pid
        two.ask("LISTEN a")
        one.ask("NOTIFY a")
        assert two.notification() == (one.pid, "a", "")


@pytest.mark.full
def test_no_pid_comes_twice_in_ten_thousand(
    engine: pynotify.Engine, new_gateway: NewGateway
) -> None:
    pids = set()
    gateways = [new_gateway(engine), new_gateway(engine)]
    for _ in range(5000):
        for gateway in gateways:
            with gateway.client() as client:
                pids.add(client.pid)
    assert len(pids) == 10_000


def test_clients_are_no_part_of_the_gateway_s_process(
    engine: pynotify.Engine, new_gateway: NewGateway, connect: Connect
) -> None:
    """What a native listener that leaves out itself gets, in the process that serves them."""
    gateway, native = new_gateway(engine), connect(to=engine)
    with native.subscribe("a", skip_self=True) as sub, gateway.client() as client:
        client.ask("LISTEN a")
        native.notify("a", "of itself")
        assert client.notification() == (os.getpid(), "a", "of itself")
        answers = client.ask("NOTIFY a, 'of a client'")
        assert ("A", client.pid, "a", "of a client") in answers
        heard = sub.next(PATIENCE)
        assert (heard.payload, heard.pid) == ("of a client", client.pid)
        assert sub.pending == 0


def test_nothing_is_delivered_in_a_transaction(
    engine: pynotify.Engine, new_gateway: NewGateway, connect: Connect
) -> None:
    gateway, native = new_gateway(engine), connect(to=engine)
    with gateway.client() as client:
        client.ask("LISTEN a; LISTEN b")
        for end in ("COMMIT", "ROLLBACK"):
            assert client.ask("BEGIN") == [("C", "BEGIN"), ("Z", "T")]
            native.notify("a", "1")
            native.notify("b", "2")
            assert client.ask("SELECT 1") == [
                ("T", [("?column?", 23, 4, 0)]), ("D", [b"1"]), ("C", "SELECT 1"), ("Z", "T")
            ]  # fmt: skip
            assert client.ask("SELECT 1/0")[-1] == ("Z", "E") if end == "ROLLBACK" else True
            native.notify("a", "3")
            pid = os.getpid()
            heard = [("A", pid, "a", "1"), ("A", pid, "b", "2"), ("A", pid, "a", "3")]
            assert client.ask(end) == [("C", end), *heard, ("Z", "I")]


def test_an_unfinished_batch_is_a_transaction(
    engine: pynotify.Engine, new_gateway: NewGateway, connect: Connect
) -> None:
    gateway, native = new_gateway(engine), connect(to=engine)
    with gateway.client() as client:
        client.ask("LISTEN a")
        client.send(parse("NOTIFY a, 'own'") + bind() + execute() + FLUSH)
        assert client.until("C") == [("1",), ("2",), ("C", "NOTIFY")]
        native.notify("a", "other")
        client.send(parse("SELECT 1") + FLUSH)
        assert client.until("1") == [("1",)]
        answers = client.ask(SYNC)
        assert answers == [
            ("A", os.getpid(), "a", "other"), ("A", client.pid, "a", "own"), ("Z", "I")
        ]  # fmt: skip


def test_while_half_a_message_is_there(
    engine: pynotify.Engine, new_gateway: NewGateway, connect: Connect
) -> None:
    gateway, native = new_gateway(engine), connect(to=engine)
    with gateway.client() as client:
        client.ask("LISTEN a")
        whole = query("SELECT 1")
        client.send(whole[:7])
        native.notify("a", "in between")
        assert client.notification().payload == "in between"
        client.send(whole[7:])
        assert client.until_ready()[-1] == ("Z", "I")


def test_what_a_killed_client_had_not_committed_is_undone(
    engine: pynotify.Engine, new_gateway: NewGateway, connect: Connect
) -> None:
    gateway, native = new_gateway(engine), connect(to=engine)
    native.listen("a")
    with gateway.client() as client:
        client.ask("BEGIN; NOTIFY a, 'never'")
    with gateway.client() as client:
        client.ask("NOTIFY a, 'after'")
    assert [n.payload for n in receive(native, 1)] == ["after"]
    wait_until(lambda: len(engine.stat().backends) == 1, "their slots are free")


def test_payloads_that_are_no_text_are_left_out_and_told(
    engine: pynotify.Engine, new_gateway: NewGateway, connect: Connect
) -> None:
    gateway, native = new_gateway(engine), connect(to=engine)
    with gateway.client() as client:
        client.ask("LISTEN a")
        with native.transaction():
            native.notify("a", b"\xff")
            native.notify("a", b"with \0 in it")
            native.notify("a", "text")
        notice, heard = (next(client.answers()) for _ in range(2))
        assert (notice[0], notice[1]["C"]) == ("N", "22021")
        assert heard[3] == "text"
        assert gateway.gateway.stat().unreadable == 2
        assert client.ask("SELECT 1")[-1] == ("Z", "I")


def test_a_gap_ends_the_session(
    make_engine: EngineFactory, new_gateway: NewGateway, connect: Connect
) -> None:
    engine = make_engine(queue_pages=64, on_full="drop-slowest")
    gateway, native = new_gateway(engine), connect(to=engine)
    with gateway.client() as client:
        client.ask("LISTEN a")
        client.ask("BEGIN")
        for _ in range(200):
            native.notify_many("a", [f"{i:04}".ljust(4000, "x") for i in range(4)])
        answers = client.ask("COMMIT")
        assert (code_of(answers), answers[-1][1]["S"]) == ("57P01", "FATAL")
        assert "lost" in answers[-1][1]["M"]
        assert client.at_end()


# ---- waiting ------------------------------------------------------------------------------------


def test_a_sleep_keeps_only_its_own_client_waiting(gateway: Running) -> None:
    with gateway.client() as sleeper, gateway.client() as other:
        sleeper.send(query("SELECT pg_sleep(3600)"))
        assert other.ask("SELECT 1")[-1] == ("Z", "I")
        sleeper_pid = sleeper.pid
        with Client(gateway.path) as wrong:
            wrong.send(struct.pack("!IIII", 16, CANCEL, sleeper_pid, sleeper.secret ^ 1))
            assert wrong.at_end()
        with Client(gateway.path) as right:
            right.send(struct.pack("!IIII", 16, CANCEL, sleeper_pid, sleeper.secret))
            assert right.at_end()
        assert code_of(sleeper.until_ready()) == "57014"
        assert sleeper.ask("SELECT pg_sleep(0.001)")[-1] == ("Z", "I")


def test_cancelling_an_idle_session_does_nothing(gateway: Running) -> None:
    with gateway.client() as client, Client(gateway.path) as other:
        other.send(struct.pack("!IIII", 16, CANCEL, client.pid, client.secret))
        assert other.at_end()
        assert ("D", [b"1"]) in client.ask("SELECT 1")


def test_a_sleep_has_the_time_of_its_statement(gateway: Running) -> None:
    with gateway.client() as client:
        client.ask("SET statement_timeout = 20")
        answers = client.ask("SELECT pg_sleep(3600)")
        assert code_of(answers) == "57014"
        assert client.ask("SELECT 1")[-1] == ("Z", "I")


def test_terminating_another_session(gateway: Running) -> None:
    with gateway.client() as client, gateway.client() as other:
        other.send(query("SELECT pg_sleep(3600)"))
        assert ("D", [b"t"]) in client.ask(f"SELECT pg_terminate_backend({other.pid})")
        assert code_of(other.until_ready()) == "57P01"
        assert other.at_end()
        assert ("D", [b"f"]) in client.ask("SELECT pg_terminate_backend(1)")


def test_a_lock_that_is_held_keeps_only_commits_waiting(
    engine: pynotify.Engine, new_gateway: NewGateway, lock_holder: LockHolder
) -> None:
    gateway = new_gateway(engine)
    with gateway.client() as writer, gateway.client() as reader:
        reader.ask("LISTEN a")
        lock_holder.hold()
        writer.send(query("NOTIFY a, 'held up'"))
        assert ("D", [b"1"]) in reader.ask("SELECT 1")
        with Client(gateway.path) as right:
            right.send(struct.pack("!IIII", 16, CANCEL, writer.pid, writer.secret))
            assert right.at_end()
        assert code_of(writer.until_ready()) == "57014"
        writer.send(query("NOTIFY a, 'goes through'"))
        assert ("D", [b"2"]) in reader.ask("SELECT 2")
        lock_holder.release()
        assert writer.until_ready() == [("C", "NOTIFY"), ("Z", "I")]
        assert reader.notification().payload == "goes through"


def test_a_commit_that_waits_for_room_keeps_only_its_own_client_waiting(
    make_engine: EngineFactory, new_gateway: NewGateway
) -> None:
    engine = make_engine(queue_pages=64, on_full="block", full_timeout=60)
    gateway = new_gateway(engine)
    sql = "SELECT count(pg_notify('a', s || repeat('x', 7000))) FROM generate_series(1, 20) s"
    with gateway.client() as pin, gateway.client() as writer, gateway.client() as other:
        pin.ask("LISTEN a")
        pin.ask("BEGIN")
        while engine.stat().queue_usage < 0.7:
            writer.ask(sql)
        writer.send(query(sql))
        writer.until("D")
        assert ("D", [b"1"]) in other.ask("SELECT 1")
        assert not select.select([writer], [], [], 0)[0], "it is said to be complete"
        assert pin.ask("COMMIT")[0] == ("C", "COMMIT")
        warning, *answers = writer.until_ready()
        assert (warning[0], warning[1]["M"]) == ("N", "NOTIFY queue is full")
        assert answers == [("C", "SELECT 1"), ("Z", "I")]


def test_a_commit_waits_for_room_no_longer_than_it_may(
    make_engine: EngineFactory, new_gateway: NewGateway
) -> None:
    engine = make_engine(queue_pages=64, on_full="block", full_timeout=0.05)
    gateway = new_gateway(engine)
    sql = "SELECT count(pg_notify('a', s || repeat('x', 7000))) FROM generate_series(1, 20) s"
    with gateway.client() as pin, gateway.client() as writer:
        pin.ask("LISTEN a")
        pin.ask("BEGIN")
        while engine.stat().queue_usage < 0.7:
            writer.ask(sql)
        answers = writer.ask(sql)
        assert [answer[0] for answer in answers] == ["T", "D", "E", "Z"], "not complete"
        assert code_of(answers) == "54000"
        writer.ask("SET statement_timeout = 10")
        assert code_of(writer.ask(sql)) == "57014"
        assert writer.ask("SELECT 1")[-1] == ("Z", "I")


# ---- what comes before ReadyForQuery -----------------------------------------------------------


def heard(answers: list[tuple[object, ...]]) -> list[str]:
    """The payloads of notifications."""
    return [str(answer[3]) for answer in answers if answer[0] == "A"]


def fill(client: Client, rounds: int = 10) -> list[str]:
    """Have it notify itself, of more than sockets and the gateway's buffer take; not committed."""
    client.ask("LISTEN a")
    client.ask("BEGIN")
    for first in range(1, 20 * rounds, 20):
        numbers = f"generate_series({first}, {first + 19}) s"
        client.ask(f"SELECT count(pg_notify('a', s || repeat('x', 7000))) FROM {numbers}")
    client.ask("NOTIFY b, 'filled'")
    return [f"{number}{'x' * 7000}" for number in range(1, 20 * rounds + 1)]


def test_all_own_notifications_come_before_ready(gateway: Running) -> None:
    """Also those that are more than the gateway holds at a time."""
    with gateway.client() as client:
        own = fill(client)
        answers = client.ask("COMMIT")
        assert heard(answers) == own
        assert answers[-1] == ("Z", "I")
        assert heard(client.ask("SELECT 1")) == []


def test_others_that_go_on_do_not_hold_ready_up(
    make_engine: EngineFactory, new_gateway: NewGateway, connect: Connect
) -> None:
    """What is committed after the session's own comes behind ReadyForQuery, and all of it."""
    engine = make_engine()
    gateway, native = new_gateway(engine), connect(to=engine)
    with gateway.client() as client, gateway.client() as other:
        other.ask("LISTEN b")
        own = fill(client)
        client.send(query("COMMIT"))
        assert other.notification().payload == "filled"
        later = [f"{number:05}".ljust(7000, "y") for number in range(300)]
        native.notify_many("a", later)
        before = heard(client.until_ready())
        assert before == (own + later)[: len(before)]
        assert len(own) <= len(before) < len(own) + len(later)
        rest = [client.notification().payload for _ in range(len(own + later) - len(before))]
        assert before + rest == own + later
        assert client.ask("SELECT 1")[-1] == ("Z", "I")


@pytest.mark.parametrize("end", ["terminated", "closed", "stopped"])
def test_a_session_ends_before_it_was_ready(gateway: Running, end: str) -> None:
    """Its client has not taken what comes before ReadyForQuery."""
    with gateway.client() as client, gateway.client() as other:
        other.ask("LISTEN b")
        own = fill(client)
        client.send(query("COMMIT"))
        assert other.notification().payload == "filled"
        if end == "terminated":
            assert ("D", [b"t"]) in other.ask(f"SELECT pg_terminate_backend({client.pid})")
        elif end == "closed":
            client.close()
            wait_until(lambda: gateway.gateway.stat().clients == 1, "it is forgotten")
        else:
            gateway.gateway.stop()
        if end == "terminated":
            answers = client.until_ready()
            got = heard(answers)
            assert got == own[: len(got)]
            assert len(got) < len(own)
            assert code_of(answers) == "57P01"
            assert answers[-1][0] == "E"  # and the end of the stream
        if end != "stopped":
            assert other.ask("SELECT 1")[-1] == ("Z", "I")


# ---- slow clients, ends -------------------------------------------------------------------------


def test_a_client_that_does_not_read_gets_all_when_it_does(
    make_engine: EngineFactory, new_gateway: NewGateway, connect: Connect
) -> None:
    engine = make_engine()
    gateway, native = new_gateway(engine), connect(to=engine)
    with gateway.client() as slow, gateway.client() as other:
        slow.ask("LISTEN a")
        other.ask("LISTEN b")
        payloads = [f"{i:05}".ljust(1000, "x") for i in range(3000)]
        for start in range(0, 3000, 100):
            native.notify_many("a", payloads[start : start + 100])
        wait_until(lambda: gateway.gateway.stat().slow == 1, "its socket takes nothing")
        native.notify("b", "not held up")
        assert other.notification().payload == "not held up"
        assert [slow.notification().payload for _ in payloads] == payloads
        assert slow.ask("SELECT 1")[-1] == ("Z", "I")
    assert gateway.gateway.stat().delivered == 3001


def test_what_a_client_has_not_read_goes_to_files(
    make_engine: EngineFactory, new_gateway: NewGateway, connect: Connect, tmp_path: Path
) -> None:
    engine = make_engine(queue_pages=64, max_queue_pages=1000, data_dir=tmp_path)
    gateway, native = new_gateway(engine), connect(to=engine)
    with gateway.client() as slow, gateway.client() as quick:
        slow.ask("LISTEN a")
        quick.ask("LISTEN b")
        for number in range(1000):
            native.notify("a", f"{number} {'x' * 2000}")
        assert engine.stat().spilled_pages > 0
        native.notify("b", "others go on")
        assert quick.notification().payload == "others go on"
        for number in range(1000):
            assert slow.notification().payload.split()[0] == str(number)


def test_a_queue_that_is_full_because_of_a_client(
    make_engine: EngineFactory, new_gateway: NewGateway
) -> None:
    gateway = new_gateway(make_engine(queue_pages=64))
    with gateway.client() as pin, gateway.client() as writer:
        pin.ask("LISTEN a")
        pin.ask("BEGIN")
        sql = "SELECT count(pg_notify('a', s || repeat('x', 7000))) FROM generate_series(1, 20) s"
        answers = []
        for _ in range(100):
            answers = writer.ask(sql)
            if any(answer[0] == "E" for answer in answers):
                break
        assert code_of(answers) == "54000"
        assert any("too many notifications" in str(a[1]["M"]) for a in answers if a[0] == "E")
        assert ("D", [b"t"]) in writer.ask("SELECT pg_notification_queue_usage() > 0.5")
        pin.ask("COMMIT")
        assert writer.ask(sql)[-1] == ("Z", "I")


def test_stop_says_goodbye_and_removes_the_socket(gateway: Running) -> None:
    with gateway.client() as client, gateway.client() as busy:
        busy.send(query("SELECT pg_sleep(3600)"))
        gateway.gateway.stop()
        for one in (client, busy):
            (answer,) = one.until_ready()
            assert (answer[1]["S"], answer[1]["C"]) == ("FATAL", "57P01")
            assert one.at_end()
    gateway.join()
    gateway.gateway.close()
    assert not list(gateway.path.parent.iterdir())


def test_a_segment_that_is_removed_ends_the_gateway(
    new_name: Callable[[], str], new_gateway: NewGateway
) -> None:
    engine = pynotify.open(new_name())
    gateway = new_gateway(engine)
    with engine, gateway.client() as client:
        client.ask("LISTEN a")
        pynotify.unlink(engine.name, force=True)
        (answer,) = client.until_ready()
        assert answer[1]["C"] == "57P01"
    with pytest.raises(pynotify.SegmentUnlinked):
        gateway.join()


@pytest.mark.parametrize("name", ["unnamed", "\N{SNOWMAN}"])
def test_what_is_false_in_a_message_does_not_end_the_session(gateway: Running, name: str) -> None:
    with gateway.client() as client:
        for false in (
            message("P", text(name)),
            message("B", b""),
            message("D", b"S"),
            message("D", b"X" + text(name)),
            message("C", b"X" + text(name)),
            message("E", text(name)),
            bind("x", name=name),
            message("B", text("") + text("") + struct.pack("!HHHH", 1, 7, 0, 0)),
        ):
            assert client.ask(false + SYNC)[-1] == ("Z", "I"), false
        assert client.ask(message("Q", b"SELECT 1"))[-1] == ("Z", "I")
        assert client.ask("SELECT 1")[-1] == ("Z", "I")


@pytest.mark.parametrize("false", [message("?", b""), b"Q\0\0\0\x01", b"Q\xff\xff\xff\xff"])
def test_what_is_no_message_ends_the_session(gateway: Running, false: bytes) -> None:
    with gateway.client() as client:
        client.send(false)
        (answer,) = client.until_ready()
        assert (answer[1]["S"], answer[1]["C"]) == ("FATAL", "08P01")
        assert client.at_end()


def test_a_reset_by_a_client_is_nothing_to_others(gateway: Running) -> None:
    with gateway.client() as other:
        with gateway.client() as client:
            client.send(query("SELECT 1") * 100)
        assert other.ask("SELECT 1")[-1] == ("Z", "I")
