"""Gateways as processes: the command, the program without Python, and their deaths."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import pynotify
from gateway.conftest import NewGateway, NewGatewayProcess
from gateway.gateways import ROOT, Running, short_directory
from gateway.wire import SYNC, Client, bind, parse, startup
from pynotify.contrib.prometheus import GatewayCollector
from pynotify.gateway import Gateway, default_directory
from receiving import PATIENCE, receive, wait_until
from requirement import require
from sessions import Connect, EngineFactory

PROGRAM = ROOT / "build" / "release" / "pynotify-gateway"


@pytest.fixture(params=["command", "program"])
def arguments_of(request: pytest.FixtureRequest) -> dict[str, tuple[str, ...]]:
    if request.param == "command":
        return {}
    if not PROGRAM.exists():
        require("pynotify-gateway", "the release build of CMake is not there")
    return {"program": (str(PROGRAM),)}


def test_serves_until_it_is_told_to_stop(
    engine: pynotify.Engine,
    new_gateway_process: NewGatewayProcess,
    connect: Connect,
    arguments_of: dict[str, tuple[str, ...]],
) -> None:
    gateway, native = new_gateway_process(engine, "--port", "6000", **arguments_of), connect()
    native.listen("a")
    with gateway.client() as client:
        client.ask("LISTEN a")
        client.ask("NOTIFY a, 'x'")
        assert [n.payload for n in receive(native, 1)] == ["x"]
        assert gateway.path.name == ".s.PGSQL.6000"
        assert gateway.end() == 0
        (answer,) = client.until_ready()
        assert answer[1]["C"] == "57P01"
    assert not list(gateway.directory.iterdir())


def test_what_a_killed_gateway_leaves_is_taken_over(
    engine: pynotify.Engine,
    new_gateway_process: NewGatewayProcess,
    connect: Connect,
    arguments_of: dict[str, tuple[str, ...]],
) -> None:
    native = connect()
    native.listen("a")
    gateway = new_gateway_process(engine, **arguments_of)
    with gateway.client() as client, gateway.client() as other:
        other.ask("LISTEN a")
        client.ask("BEGIN")
        client.ask("NOTIFY a, 'never'")
        gateway.end(signal.SIGKILL)
        assert client.at_end()
        assert other.at_end()
    native.notify("a", "after")
    assert [n.payload for n in receive(native, 1)] == ["after"]
    wait_until(lambda: len(engine.stat().backends) == 1, "the slots of its clients are free")
    with Gateway(engine.name, directory=gateway.directory) as heir:
        assert heir.path == gateway.path
        with pytest.raises(pynotify.OperationalError, match=f"pid {os.getpid()}"):
            Gateway(engine.name, directory=gateway.directory)


@pytest.mark.full
def test_two_hundred_kills(
    engine: pynotify.Engine, new_gateway_process: NewGatewayProcess, connect: Connect
) -> None:
    """GW-KILL: wherever it is killed, native peers lose nothing, and the segment is sound."""
    if not PROGRAM.exists():
        require("pynotify-gateway", "the release build of CMake is not there")
    sender, listener = connect(), connect()
    listener.listen("a")
    sent = 0
    for kill in range(200):
        gateway = new_gateway_process(engine, program=(str(PROGRAM),))
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(gateway.client()) for _ in range(4)]
            for client in clients:
                client.ask("LISTEN a; LISTEN b")
            for step in range(kill % 20):
                sender.notify("a", str(sent))
                sent += 1
                clients[step % 4].send(b"Q\0\0\0\x12NOTIFY b, 'x'\0")
            gateway.end(signal.SIGKILL)
        gateway.close()
    payloads = [n.payload for n in receive(listener, sent)]
    assert payloads == [str(number) for number in range(sent)]
    wait_until(lambda: len(engine.stat().backends) == 2, "only the native ones are left")
    assert engine.check().ok


def descriptors(pid: int) -> Counter[str]:
    """What the descriptors of a process are, with how many of each."""
    kinds: Counter[str] = Counter()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed after it had been listed
            kinds[re.sub(r"(socket|pipe):.*", r"\1", os.readlink(fd))] += 1
    return kinds


def descriptors_of_clients(pid: int) -> list[int]:
    """How many there are of each kind that a client has, and the gateway, too.

    A slot is free before its descriptors are closed.
    """
    kinds = descriptors(pid)
    return [kinds[kind] for kind in ("socket", "anon_inode:[eventpoll]", "anon_inode:[timerfd]")]


def test_hundreds_of_clients_and_no_leak(
    make_engine: EngineFactory, new_gateway_process: NewGatewayProcess
) -> None:
    """GW-FD, in small: the soft limit of descriptors is raised, and all come back."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        require("descriptors", f"only {hard} file descriptors")
    engine = make_engine(max_backends=512)
    gateway = new_gateway_process(engine)
    before = descriptors_of_clients(gateway.pid)

    def all_come_and_go() -> Counter[str]:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(gateway.client()) for _ in range(300)]
            for client in clients:
                client.ask("LISTEN a")
            clients[0].ask("NOTIFY a, 'to all'")
            assert all(client.notification().payload == "to all" for client in clients[1:])
        wait_until(lambda: not engine.stat().backends, "they are gone")
        wait_until(lambda: descriptors_of_clients(gateway.pid) == before, "they are closed")
        return descriptors(gateway.pid)

    # A process keeps the lock files of the slots that it has ever had: one for 64 of them.
    assert all_come_and_go() == all_come_and_go()


def anonymous_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon")))


def test_portals_go_with_their_transaction(
    make_engine: EngineFactory, new_gateway_process: NewGatewayProcess
) -> None:
    """However it ends; each has its parameters, here a megabyte."""
    gateway = new_gateway_process(make_engine())
    text, count = "x" * (1 << 20), 64
    with gateway.client() as client:
        client.ask(parse("SELECT $1", "s") + SYNC)

        def begin_and_end() -> None:
            for number, end in enumerate(("COMMIT", "ROLLBACK") * (count // 2)):
                client.ask("BEGIN")
                answers = client.ask(bind(text, portal=f"p{number}", name="s") + SYNC)
                assert [answer[0] for answer in answers] == ["2", "Z"]
                client.ask(end)

        begin_and_end()
        before = anonymous_kib(gateway.pid)
        begin_and_end()
        assert anonymous_kib(gateway.pid) < before + count * 1024 // 2


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_thousand_clients_and_a_hundred_thousand_connections(
    make_engine: EngineFactory, new_gateway_process: NewGatewayProcess
) -> None:
    """GW-FD: the soft limit is the usual one, which the gateway raises; nothing is left of any."""
    for program in ("pgbench", "prlimit"):
        require(program)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 8192:
        require("descriptors", f"only {hard} file descriptors")
    engine = make_engine(max_backends=2048)
    limited = ("prlimit", f"--nofile=1024:{hard}", sys.executable, "-m", "pynotify", "gateway")
    gateway = new_gateway_process(engine, program=limited)
    before = descriptors_of_clients(gateway.pid)
    script = gateway.directory / "script.sql"
    script.write_text("NOTIFY a;\n")

    def connect_many(times: int) -> None:
        command = ["pgbench", "-n", "-C", "-c", "8", "-t", str(times // 8), "-f", str(script)]
        command += ["-h", str(gateway.directory), "-p", gateway.path.suffix[1:], "-U", "me"]
        subprocess.run([*command, "default"], capture_output=True, check=True)
        wait_until(lambda: not engine.stat().backends, "they are gone")
        wait_until(lambda: descriptors_of_clients(gateway.pid) == before, "they are closed")

    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(gateway.client()) for _ in range(1000)]
            for client in clients:
                client.ask("LISTEN a")
            clients[0].ask("NOTIFY a, 'to all'")
            assert all(client.notification().payload == "to all" for client in clients[1:])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    connect_many(10_000)
    kept, memory = descriptors(gateway.pid), anonymous_kib(gateway.pid)
    connect_many(90_000)
    assert descriptors(gateway.pid) == kept
    assert anonymous_kib(gateway.pid) < memory + 1024


@pytest.mark.parametrize("microseconds", ["0", "1000"])
def test_it_sleeps_when_its_clients_are_idle(
    engine: pynotify.Engine,
    new_gateway_process: NewGatewayProcess,
    arguments_of: dict[str, tuple[str, ...]],
    microseconds: str,
) -> None:
    """Also after statements that came soon after one another."""
    gateway = new_gateway_process(engine, "--busy-poll", microseconds, **arguments_of)
    status = Path(f"/proc/{gateway.pid}/status")

    def slept() -> str:
        lines = status.read_text().splitlines()
        return next(line for line in lines if line.startswith("voluntary_ctxt_switches"))

    def sleeps() -> bool:
        before = slept()
        for _ in range(20):
            os.sched_yield()
        return "sleeping" in status.read_text() and slept() == before

    with gateway.client() as client:
        for number in range(300):
            client.ask(f"NOTIFY a, '{number}'")
        wait_until(sleeps, "it sleeps, and is not woken")
        client.ask("NOTIFY a, 'after'")


@pytest.mark.full
def test_it_sleeps_while_a_client_stays_in_its_transaction(
    engine: pynotify.Engine, new_gateway_process: NewGatewayProcess
) -> None:
    """The timer of the client's slot ticks again and again; each time it has to be read."""
    gateway = new_gateway_process(engine)
    status = Path(f"/proc/{gateway.pid}/status")

    def slept() -> int:
        lines = status.read_text().splitlines()
        (line,) = (line for line in lines if line.startswith("voluntary_ctxt_switches"))
        return int(line.split()[1])

    with gateway.client() as client:
        client.ask("BEGIN")
        before = slept()
        wait_until(lambda: slept() >= before + 15, "it sleeps after each tick", 40)
        client.ask("COMMIT")


def test_no_descriptor_left_is_told(
    engine: pynotify.Engine, new_gateway_process: NewGatewayProcess
) -> None:
    gateway = new_gateway_process(engine)
    used = len(list(Path(f"/proc/{gateway.pid}/fd").iterdir()))
    resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (used, used))
    with Client(gateway.path) as client:
        (answer,) = client.until_ready()
        assert answer[1]["C"] == "53300"
        assert "descriptor" in answer[1]["H"]


def test_an_unsafe_directory_is_refused(engine: pynotify.Engine) -> None:
    with short_directory() as directory:
        Path(directory).chmod(0o777)
        with pytest.raises(pynotify.OperationalError, match="not safe"):
            Gateway(engine.name, directory=directory)
    with pytest.raises(pynotify.OperationalError, match="107 bytes"):
        Gateway(engine.name, directory="/tmp/" + "x" * 120)
    with pytest.raises(ValueError, match="port"):
        Gateway(engine.name, port=70000)
    with pytest.raises(ValueError, match="1 to 600 seconds, not 0"):
        Gateway(engine.name, authentication_timeout=0)
    with pytest.raises(ValueError, match="0 to 1000 microseconds, not -1"):
        Gateway(engine.name, busy_poll=-1)


def test_the_socket_of_another_server_is_left_alone(engine: pynotify.Engine) -> None:
    with short_directory() as directory, socket.socket(socket.AF_UNIX) as other:
        other.bind(f"{directory}/.s.PGSQL.5432")
        other.listen()
        with pytest.raises(pynotify.OperationalError, match="listens at"):
            Gateway(engine.name, directory=directory)
        assert Path(f"{directory}/.s.PGSQL.5432").exists()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def as_user(uid: int, program: str, *arguments: object) -> str:
    """What a Python of another user prints."""
    require("root")
    require("setpriv")
    paths = [str(ROOT / "tests"), str(ROOT / "tests" / "support"), str(ROOT)]
    done = subprocess.run(
        ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", sys.executable, "-c",
         f"import sys; sys.path[:0] = {paths}; from gateway.wire import *\n{program}",
         *map(str, arguments)],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_only_users_that_are_allowed(
    engine: pynotify.Engine, new_gateway_process: NewGatewayProcess
) -> None:
    require("root")
    port = free_port()
    gateway = new_gateway_process(engine, "--allow-uid", "12345", "--tcp", "--port", str(port))
    gateway.directory.chmod(0o755)
    program = "print(Client({}).start('me', 'default')[-1])"
    for address in (f"'{gateway.path}'", f"('127.0.0.1', {port})"):
        for uid, said in ((12345, "('Z', 'I')"), (12346, "peer authentication failed")):
            assert said in as_user(uid, program.format(address)), (address, uid)
    with Client(("127.0.0.1", port)) as own:
        assert own.start("me", "default")[-1] == ("Z", "I")


def test_statistics_have_a_name_for_each_client(gateway: Running) -> None:
    def names() -> list[str]:
        with pynotify.open(gateway.segment) as engine:
            return [backend.application_name for backend in engine.stat().backends]

    with gateway.client() as plain, gateway.client(application_name="web") as named:
        own = f"[{os.getpid()}]"
        assert names() == [own, f"web {own}"]
        named.ask("SET application_name = 'jobs'")
        assert names() == [own, f"jobs {own}"]
        named.ask(f"BEGIN; SET LOCAL application_name = '{'é' * 60}'")
        (shown,) = (name for name in names() if name.startswith("é"))
        assert re.fullmatch(r"é+ \[\d+\]", shown) and 60 <= len(shown.encode()) <= 63
        named.ask("ROLLBACK")
        assert names() == [own, f"jobs {own}"]
        plain.ask("SET application_name = 'x'; ROLLBACK")
        command = [sys.executable, "-m", "pynotify", "stat", gateway.segment]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert re.search(rf"  jobs \[{os.getpid()}\]$", out, re.M) and "APPLICATION\n" in out


@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
def test_users_signal_their_own_clients_only(
    engine: pynotify.Engine, new_gateway_process: NewGatewayProcess, tcp: bool
) -> None:
    """Those of other users are asked for by root, which may signal all."""
    require("root")
    port = free_port()
    options = ["--allow-uid", "12345", "--allow-uid", "12346", "--tcp", "--port", str(port)]
    gateway = new_gateway_process(engine, *options)
    gateway.directory.chmod(0o755)
    address = ("127.0.0.1", port) if tcp else gateway.path
    ask = (
        f"client = Client({('127.0.0.1', port) if tcp else str(gateway.path)!r})\n"
        "client.start('me', 'default')\n"
        "pid = sys.argv[2] if len(sys.argv) > 2 else client.pid\n"
        "print(client.ask(f'SELECT pg_{sys.argv[1]}_backend({pid})'))"
    )
    with Client(address) as target:
        target.start("me", "default")
        for what, of in (("terminate", "process is being terminated"), ("cancel", "query is")):
            said = as_user(12345, ask, what, target.pid)
            assert "42501" in said
            assert of in said
        assert target.ask("SELECT 1")[-1] == ("Z", "I")
        assert "[b't']" in as_user(12345, ask, "cancel")
        with Client(address) as other:
            other.start("me", "default")
            assert ("D", [b"t"]) in other.ask(f"SELECT pg_terminate_backend({target.pid})")
            assert next(target.answers())[0] == "E"


def test_a_crowd_that_speaks_at_once(
    engine: pynotify.Engine, new_gateway_process: NewGatewayProcess
) -> None:
    """What was sent is read before a peer counts as silent; 16 of those are kept here."""
    program = ("bash", "-c", 'ulimit -n 64; exec "$@"', "-", sys.executable, "-m", "pynotify")
    gateway = new_gateway_process(engine, program=(*program, "gateway"))
    os.kill(gateway.pid, signal.SIGSTOP)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(gateway.path)) for _ in range(40)]
        for client in clients:
            client.send(startup(user="me", database="default"))
        os.kill(gateway.pid, signal.SIGCONT)
        ends = [client.until_ready()[-1] for client in clients]
    assert ends[:16] == [("Z", "I")] * 16
    for end in ends:  # there may not be descriptors for all
        assert end == ("Z", "I") or "descriptor" in end[1]["H"], end


@pytest.mark.full
def test_a_peer_that_may_not_connect_has_five_seconds(
    engine: pynotify.Engine, new_gateway_process: NewGatewayProcess
) -> None:
    require("root")
    gateway = new_gateway_process(engine)
    gateway.directory.chmod(0o755)
    Path(gateway.path).chmod(0o777)
    said = as_user(12346, "print(next(Client(sys.argv[1]).answers()))", gateway.path)
    assert "canceling authentication due to timeout" in said


#: More peers of another user than the gateway keeps, of which the first is closed.
CROWD = """
import socket
def peer():
    one = socket.socket(socket.AF_UNIX)
    one.connect(sys.argv[1])
    return one
peers = [peer() for _ in range(33)]
print(peers[0].recv(1000)[:1], peers[0].recv(1))
peers[1].sendall(startup(user="me", database="default"))
print(peers[1].recv(1))
"""


def test_peers_that_may_not_connect_are_few(
    engine: pynotify.Engine, new_gateway_process: NewGatewayProcess
) -> None:
    """The oldest is told and closed, though it has said nothing; the others may say their names."""
    require("root")
    gateway = new_gateway_process(engine, "--allow-uid", "12345")
    gateway.directory.chmod(0o755)
    with Client(gateway.path) as own:
        own.start("me", "default")
        assert as_user(12346, CROWD, gateway.path).split() == ["b'E'", "b''", "b'E'"]
        assert own.ask("SELECT 1")[-1] == ("Z", "I")


def test_a_tcp_peer_that_has_gone_already(
    engine: pynotify.Engine, new_gateway_process: NewGatewayProcess, connect: Connect
) -> None:
    """The kernel says uid 0 of a socket that is closed."""
    require("root")
    native, port = connect(), free_port()
    native.listen("a")
    gateway = new_gateway_process(engine, "--tcp", "--port", str(port))
    program = (
        "import socket\n"
        "with socket.create_connection(('127.0.0.1', int(sys.argv[1]))) as other:\n"
        "    all = startup(user='me', database='default') + query('NOTIFY a') + TERMINATE\n"
        "    other.sendall(all)\n"
    )
    os.kill(gateway.pid, signal.SIGSTOP)
    try:
        as_user(12346, program, port)
    finally:
        os.kill(gateway.pid, signal.SIGCONT)
    with Client(("127.0.0.1", port)) as own:  # accepted after the other one
        own.start("me", "default")
        own.ask("NOTIFY a, 'own'")
    assert [note.payload for note in receive(native, 1)] == ["own"]


def test_the_default_directory_is_the_user_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_directory() == tmp_path / "pynotify"
    assert (tmp_path / "pynotify").stat().st_mode & 0o777 == 0o700


def test_a_gateway_runs_once_at_a_time(gateway: Running) -> None:
    with gateway.client():
        with pytest.raises(pynotify.InterfaceError, match="runs"):
            gateway.gateway.run()
        with pytest.raises(pynotify.InterfaceError, match="runs"):
            gateway.gateway.close()
    gateway.gateway.stop()
    gateway.join()
    gateway.gateway.close()
    with pytest.raises(pynotify.InterfaceError, match="closed"):
        gateway.gateway.stat()
    gateway.gateway.close()


def test_stop_before_run(engine: pynotify.Engine, new_gateway: NewGateway) -> None:
    with short_directory() as directory, Gateway(engine.name, directory=directory) as gateway:
        gateway.stop()
        gateway.run()


def test_ctrl_c_ends_it(engine: pynotify.Engine, new_gateway_process: NewGatewayProcess) -> None:
    gateway = new_gateway_process(engine)
    with gateway.client() as client:
        assert gateway.end(signal.SIGINT) == 0
        assert client.until_ready()[0][1]["C"] == "57P01"


def test_a_signal_handler_that_raises_ends_run(engine: pynotify.Engine) -> None:
    def raise_it(_signo: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, raise_it)
    try:
        with short_directory() as directory, Gateway(engine.name, directory=directory) as gateway:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                gateway.run()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_forked_child_leaves_the_sockets_alone(engine: pynotify.Engine) -> None:
    with short_directory() as directory, Gateway(engine.name, directory=directory) as gateway:
        child = os.fork()
        if not child:
            gateway.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert gateway.path.exists()
    assert not gateway.path.exists()


def _figures(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        sample.name.removeprefix("pynotify_gateway_"): sample.value
        for family in families
        for sample in family.samples
        if sample.labels
    }


def test_figures_for_prometheus(
    engine: pynotify.Engine, new_gateway_process: NewGatewayProcess
) -> None:
    gateway = new_gateway_process(engine, "--prometheus", "0")
    match = re.fullmatch(r"metrics are at (127\.0\.0\.1:\d+/metrics)\n", gateway.line())
    assert match
    url = f"http://{match[1]}"
    with gateway.client() as one, gateway.client() as other:
        one.ask("LISTEN a; LISTEN b")
        other.ask("LISTEN a")
        other.ask("NOTIFY a, 'x'; NOTIFY c")
        other.ask("BEGIN")
        other.ask("LISTEN d")
        assert _figures(url)["listens"] == 3, "what is not committed does not count"
        other.ask("ROLLBACK; UNLISTEN b")
        one.ask("UNLISTEN b")
        assert _figures(url) == {
            "connections_total": 2,
            "refused_connections_total": 0,
            "clients": 2,
            "listens": 2,
            "received_notifications_total": 2,
            "delivered_notifications_total": 2,
            "unreadable_notifications_total": 0,
            "slow_clients": 0,
        }
        one.ask("DISCARD ALL")
        assert _figures(url)["listens"] == 1
    wait_until(lambda: _figures(url)["clients"] == 0, "they are gone")
    assert _figures(url)["listens"] == 0
    assert gateway.end() == 0


def test_figures_without_the_client_of_prometheus(engine_name: str) -> None:
    program = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from pynotify.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    with short_directory() as directory:
        words = ["gateway", engine_name, "--directory", directory, "--prometheus", "[::1]:0"]
        done = subprocess.run(
            [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
        )
        assert not os.listdir(directory), "its socket is gone"
    assert done.returncode == 1
    assert done.stderr.startswith("pynotify gateway: the package prometheus-client is not")


def test_figures_of_a_closed_gateway(engine: pynotify.Engine, new_gateway: NewGateway) -> None:
    gateway = new_gateway(engine)
    collector = GatewayCollector(gateway.gateway)
    assert list(collector.describe()) == []
    assert len(list(collector.collect())) == 8
    gateway.close()
    assert list(collector.collect()) == []
