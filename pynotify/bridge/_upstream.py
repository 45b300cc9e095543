"""One connection to a PostgreSQL, of which nothing here ever waits.

1. libpq's asynchronous half, driven by the loop that polls the socket: a server that is stopped
   stops nothing here.  What cannot be done at once is in `_statements`, one of which is on its way.
2. After the end of an earlier connection its backend may still be there, in the middle of a
   commit, of which the new one would hear under another pid than its own: an echo.  So before
   anything else that backend is ended, and seen to be gone.
3. `Lost` ends it: whatever it was, another one is made.
"""

from __future__ import annotations

import select
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
from psycopg import conninfo, pq

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Done = Callable[["list[pq.abc.PGresult]"], None]
    Failed = Callable[[psycopg.Error], None]

_GOOD: Final = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
#: A network that went away without a word is noticed in a minute, not in two hours.
_KEEPALIVES: Final = {
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
    "fallback_application_name": "pynotify bridge",
}
_CONNECT_TIMEOUT: Final = 10.0
_TERMINATE_MS: Final = b"5000"
_TERMINATE_WAITS: Final = 140000  # server_version

_WHO_AM_I: Final = (
    b"SELECT pid, extract(epoch FROM backend_start)::text, current_setting('server_encoding')"
    b" FROM pg_catalog.pg_stat_activity WHERE pid = pg_catalog.pg_backend_pid()"
)
_SELECTED: Final = (
    b" FROM pg_catalog.pg_stat_activity WHERE pid = $1::int"
    b" AND extract(epoch FROM backend_start)::text = $2"
)


class Lost(Exception):
    """The connection is of no use any more, or never was."""


class Identity(NamedTuple):
    """A backend of the server, of all that ever were."""

    pid: int
    started: bytes


class _Statement(NamedTuple):
    text: bytes
    values: list[bytes] | None
    done: Done
    failed: Failed | None


def parameters(dsn: str) -> tuple[bytes, float]:
    """What libpq is told, and how long connecting may take."""
    given = conninfo.conninfo_to_dict(dsn)
    chosen: dict[str, Any] = {**_KEEPALIVES, **given, "client_encoding": "UTF8"}
    seconds = float(given.get("connect_timeout") or 0) or _CONNECT_TIMEOUT
    return conninfo.make_conninfo(**chosen).encode(), seconds


def quoted(channel: str) -> bytes:
    """The name as an SQL identifier."""
    return b'"' + channel.encode().replace(b'"', b'""') + b'"'


class Upstream:
    """A connection upstream.

    It is `ready` when `previous` is gone for sure; `on_ready` is called then.
    """

    def __init__(
        self,
        dsn: str,
        *,
        previous: Identity | None,
        clock: Callable[[], float],
        on_ready: Callable[[], None],
    ) -> None:
        text, seconds = parameters(dsn)
        self._previous = previous
        self._on_ready = on_ready
        self._statements: deque[_Statement] = deque()
        self._under_way: _Statement | None = None
        self._results: list[pq.abc.PGresult] = []
        self._connected = self.ready = False
        self._events = select.POLLOUT
        #: When connecting takes too long; None: it has succeeded.
        self.deadline: float | None = clock() + seconds
        self._clock = clock
        #: What has come: channel, payload, pid.
        self.notifications: deque[tuple[bytes, bytes, int]] = deque()
        self.identity: Identity | None = None
        self.encoding = ""
        self._pgconn = pq.PGconn.connect_start(text)
        if self._pgconn.status == pq.ConnStatus.BAD:
            raise self._lost()

    # ---- what the loop needs -------------------------------------------------------------------

    def fileno(self) -> int:
        """The socket; while connecting it may change from step to step."""
        try:
            return self._pgconn.socket
        except psycopg.OperationalError as error:
            raise Lost(_text(error)) from error

    @property
    def events(self) -> int:
        """What to poll it for."""
        return self._events

    @property
    def idle(self) -> bool:
        """Whether it is ready and has nothing to do."""
        return self.ready and self._under_way is None and not self._statements

    @property
    def server(self) -> str:
        """Which it is, for people."""
        pgconn = self._pgconn
        host = (pgconn.host or b"").decode("utf-8", "replace")
        return f"{host}:{(pgconn.port or b'').decode()}/{(pgconn.db or b'').decode()}"

    def step(self, events: int) -> None:
        """Go on as far as that is possible now; raises `Lost`."""
        try:
            if self._connected:
                self._exchange(events)
            else:
                self._connect(events)
        except psycopg.OperationalError as error:
            raise Lost(_text(error)) from error

    def _connect(self, events: int) -> None:
        if not events:
            if self.deadline is not None and self._clock() >= self.deadline:
                raise Lost("the server does not answer")
            return
        status = self._pgconn.connect_poll()
        if status == pq.PollingStatus.FAILED:
            raise self._lost()
        if status == pq.PollingStatus.OK:
            self._connected = True
            self._events = select.POLLIN
            self._pgconn.nonblocking = 1
            self.execute(_WHO_AM_I, [], self._introduce)
            self._exchange(0)  # nothing comes before something was asked
        else:
            reading = status == pq.PollingStatus.READING
            self._events = select.POLLIN if reading else select.POLLOUT

    def _lost(self) -> Lost:
        return Lost(_text(self._pgconn.get_error_message()))

    # ---- statements ----------------------------------------------------------------------------

    def execute(
        self, text: bytes, values: list[bytes] | None, done: Done, failed: Failed | None = None
    ) -> None:
        """Execute a statement as soon as those before it are done.

        Without `values` there may be several in one.  Without `failed` an error of the server is a
        loss.
        """
        self._statements.append(_Statement(text, values, done, failed))

    def _exchange(self, events: int) -> None:
        if self._pgconn.status == pq.ConnStatus.BAD:
            raise self._lost()
        if events & ~select.POLLOUT:
            try:
                self._pgconn.consume_input()
            except psycopg.OperationalError:
                self._take_notifications()  # those that came before the end
                raise
        while True:
            self._take_results()
            self._take_notifications()
            if self._under_way is not None or not self._statements:
                break
            self._send(self._statements.popleft())
        unsent = self._pgconn.flush() == 1
        self._events = select.POLLIN | (select.POLLOUT if unsent else 0)

    def _send(self, statement: _Statement) -> None:
        self._under_way = statement
        if statement.values is None:
            self._pgconn.send_query(statement.text)
        else:
            self._pgconn.send_query_params(statement.text, statement.values)
        self._pgconn.flush()

    def _take_results(self) -> None:
        while self._under_way is not None and not self._pgconn.is_busy():
            result = self._pgconn.get_result()
            if result is not None:
                self._results.append(result)
                if self._pgconn.status == pq.ConnStatus.BAD:
                    raise self._lost()
                continue
            statement, self._under_way = self._under_way, None
            results, self._results = self._results, []
            wrong = next((r for r in results if r.status not in _GOOD), None)
            if wrong is None:
                statement.done(results)
                continue
            error = psycopg.errors.error_from_result(wrong, encoding="utf-8")
            if statement.failed is None:
                raise Lost(_text(error))
            statement.failed(error)

    def _take_notifications(self) -> None:
        while notify := self._pgconn.notifies():
            self.notifications.append((notify.relname, notify.extra, notify.be_pid))

    # ---- before it is ready --------------------------------------------------------------------

    def _introduce(self, results: Sequence[pq.abc.PGresult]) -> None:
        # Asked for, since a pooler in between tells libpq another pid than notifications bear.
        pid, started, encoding = (results[0].get_value(0, column) or b"" for column in range(3))
        self.identity = Identity(int(pid), started)
        self.encoding = encoding.decode()
        if self._previous is None:
            self._be_ready(results)
            return
        previous = [str(self._previous.pid).encode(), self._previous.started]
        if self._pgconn.server_version >= _TERMINATE_WAITS:
            terminate = b"SELECT pg_catalog.pg_terminate_backend(pid, " + _TERMINATE_MS + b")"
        else:
            terminate = b"SELECT pg_catalog.pg_terminate_backend(pid)"
        self.execute(terminate + _SELECTED, previous, lambda _: None)
        self.execute(b"SELECT 1" + _SELECTED, previous, self._look_for_previous)

    def _look_for_previous(self, results: Sequence[pq.abc.PGresult]) -> None:
        if results[0].ntuples:
            assert self._previous is not None
            raise Lost(f"the earlier connection's backend (PID {self._previous.pid}) still runs")
        self._be_ready(results)

    def _be_ready(self, _: Sequence[pq.abc.PGresult]) -> None:
        self.ready = True
        self.deadline = None
        self._on_ready()

    def close(self) -> None:
        """The server sees a good end, if it sees any."""
        self._pgconn.finish()


def _text(error: object) -> str:
    return " ".join(str(error).split()) or "the connection is closed"
