"""What a reading as an adversary found: clients that are after the gateway, or after each other."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

import pynotify
from gateway.gateways import Running, short_directory
from gateway.wire import SYNC, bind, execute, parse, query
from pynotify.gateway import Gateway
from receiving import wait_until


def code_of(answers: list[tuple[object, ...]]) -> str:
    return next((str(answer[1]["C"]) for answer in answers if answer[0] == "E"), "")  # type: ignore[index]


def test_a_setting_that_is_set_in_the_same_row(gateway: Running) -> None:
    """It was read after it had been freed."""
    with gateway.client() as client:
        client.ask(f"SET a.b = '{'o' * 100}'")
        answers = client.ask(
            f"SELECT current_setting('a.b'), set_config('a.b', '{'n' * 99}', false)"
        )
        assert ("D", [b"o" * 100, b"n" * 99]) in answers


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT " + "+" * 100_000 + "1",
        "DO;" * 300_000,
        "SELECT count(repeat('x', 16000000)) FROM generate_series(1, 1000000)",
        "SELECT count(*) FROM generate_series(1, 1000000);" * 2_000,
        "SELECT repeat('x', 16000000)" + "::varchar::text" * 50,
    ],
    ids=lambda sql: sql[:30],
)
def test_a_text_that_would_keep_the_thread(gateway: Running, sql: str) -> None:
    with gateway.client() as client, gateway.client() as other:
        client.send(query(sql))
        assert other.ask("SELECT 1")[-1] == ("Z", "I")
        assert client.until_ready()[-1] == ("Z", "I")


def test_results_of_one_text_are_bounded(gateway: Running) -> None:
    with gateway.client() as client:
        assert code_of(client.ask(f"SET search_path = '{'x' * 100_000}'")) == "22023"
        client.ask(f"SET search_path = '{'x' * 8_000}'")
        assert code_of(client.ask("SHOW search_path;" * 10_000)) == "54000"


def test_what_is_prepared_is_bounded(gateway: Running) -> None:
    with gateway.client() as client:
        text = "SELECT 1" + ";" * 500_000
        codes = [code_of(client.ask(parse(text, f"s{i}") + SYNC)) for i in range(4)]
        assert codes[0] == ""
        assert codes[-1] == "53400"


def test_a_terminated_client_that_does_not_read_is_gone(gateway: Running) -> None:
    with gateway.client() as client, gateway.client() as other:
        client.ask("LISTEN a")
        client.send(query("SELECT repeat('x', 8000000)"))
        wait_until(lambda: gateway.gateway.stat().slow == 1, "it does not read")
        other.ask(f"SELECT pg_terminate_backend({client.pid})")
        other.ask("NOTIFY a")
        wait_until(lambda: gateway.gateway.stat().clients == 1, "it is dropped")


def test_set_local_ends_with_the_transaction_whatever_was_rolled_back(gateway: Running) -> None:
    with gateway.client() as client:
        client.ask("BEGIN; SET LOCAL application_name = 'l'; SAVEPOINT s")
        client.ask("SET application_name = 'g'; ROLLBACK TO s; COMMIT")
        assert ("D", [b""]) in client.ask("SHOW application_name")
        client.ask("BEGIN; SET application_name = 'a'; SET LOCAL application_name = 'b'; COMMIT")
        assert ("D", [b"a"]) in client.ask("SHOW application_name")


def test_a_portal_that_failed_is_not_run_again(gateway: Running) -> None:
    with gateway.client() as client:
        client.ask("BEGIN; SAVEPOINT s")
        sql = "SELECT 6 / (3 - s) FROM generate_series(1, 5) s"
        client.ask(parse(sql) + bind(portal="p") + execute("p") + SYNC)
        client.ask("ROLLBACK TO s")
        assert code_of(client.ask(execute("p") + SYNC)) in {"34000", "55000"}


def test_a_child_stops_and_runs_nothing_of_its_parent(gateway: Running) -> None:
    child = os.fork()
    if not child:
        gateway.gateway.stop()
        try:
            gateway.gateway.run()
        except pynotify.InterfaceError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    with gateway.client() as client:
        assert client.ask("SELECT 1")[-1] == ("Z", "I")


def test_the_lock_file_of_another_server_is_left_as_it_is(engine: pynotify.Engine) -> None:
    with short_directory() as directory, socket.socket(socket.AF_UNIX) as other:
        other.bind(f"{directory}/.s.PGSQL.5432")
        other.listen()
        lock = Path(f"{directory}/.s.PGSQL.5432.lock")
        lock.write_text("4711\n/data\n")
        with pytest.raises(pynotify.OperationalError, match="listens at"):
            Gateway(engine.name, directory=directory)
        assert lock.read_text() == "4711\n/data\n"


def test_nan_and_arrays(gateway: Running) -> None:
    with gateway.client() as client:
        assert ("D", [b"f", b"t"]) in client.ask("SELECT 'NaN'::float8 = 1, 'NaN'::float8 > 1")
        assert code_of(client.ask("SELECT '{1}'::int4[] = '{2}'::int4[]")) == "42883"


def test_a_client_may_terminate_itself(gateway: Running) -> None:
    with gateway.client() as client:
        client.send(query(f"SELECT pg_terminate_backend({client.pid})"))
        assert code_of(client.until("E")) == "57P01"
        assert client.at_end()


def test_a_client_that_is_ended_after_a_fork(gateway: Running) -> None:
    """A child has copies of all sockets: they stayed in the loop, for a client that was freed."""
    with gateway.client() as client, gateway.client() as other:
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            os.close(theirs)
            os.read(ours, 1)  # until the parent ends it
            os._exit(0)
        os.close(ours)
        try:
            other.ask(f"SELECT pg_terminate_backend({client.pid})")
            assert code_of(client.until("E")) == "57P01"
            assert client.at_end(), "although the child has the gateway's end of it"
            assert other.ask("SELECT 1")[-1] == ("Z", "I")
        finally:
            os.close(theirs)
            assert os.waitpid(child, 0)[1] == 0
