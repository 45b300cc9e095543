"""What the clients for threads and for tasks share; each class stands before redis-py's own."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

from redis.exceptions import ConnectionError

from pynotify._log import logger
from pynotify._segments import check_name
from pynotify.errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self


class SegmentConnection:
    """A connection of redis-py that leads to a segment."""

    _link: object | None

    def __init__(
        self,
        segment: str = "default",
        segment_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        check_name(segment)
        self.segment, self._segment_options = segment, segment_options or {}
        self._link = None
        self.host, self.port = f"pynotify:{segment}", 0
        # Less what it would say to a server.
        kept = {name: value for name, value in options.items() if "maint" not in name}
        kept |= {"protocol": 2, "driver_info": None, "health_check_interval": 0}
        super().__init__(**kept)

    def repr_pieces(self) -> list[tuple[str, Any]]:
        """What `repr()` shows."""
        return [("segment", self.segment)]

    @property
    def is_connected(self) -> bool:
        """Whether it has a backend slot."""
        return self._link is not None

    def _host_error(self) -> str:
        return f"segment {self.segment}"

    def _error_message(self, exception: BaseException) -> str:
        return f"Error connecting to {self._host_error()}. {exception}"


class SegmentPool:
    """A pool of connections to a segment; the arguments are those of `Redis`."""

    _kind: ClassVar[type[SegmentConnection]]

    def __init__(self, segment: str = "default", **options: Any) -> None:
        check_name(segment)
        options.setdefault("connection_class", self._kind)
        super().__init__(segment=segment, protocol=2, **options)  # type: ignore[call-arg]

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """A pool for `pynotify://SEGMENT`; as of `Redis.from_url`."""
        segment, given = parse_url(url)
        return cls(segment, **{**given, **options})


class SegmentClient:
    """A client on a segment."""

    _pool: ClassVar[type[SegmentPool]]

    def __init__(
        self,
        segment: str = "default",
        *,
        connection_pool: Any = None,
        segment_options: dict[str, Any] | None = None,
        single_connection_client: bool = False,
        **options: Any,
    ) -> None:
        own = connection_pool is None
        pool = connection_pool or self._pool(segment, segment_options=segment_options, **options)
        super().__init__(  # type: ignore[call-arg]
            connection_pool=pool, single_connection_client=single_connection_client
        )
        self.auto_close_connection_pool = own

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """A client for `pynotify://SEGMENT`, with `?decode_responses=1` and the like."""
        segment, given = parse_url(url)
        return cls(segment, **{**given, **options})


def parse_url(url: str) -> tuple[str, dict[str, Any]]:
    """The segment and the options of a URL."""
    parts = urlsplit(url)
    if parts.scheme != "pynotify" or not parts.netloc:
        raise ValueError(f"the URL must be pynotify://SEGMENT, not {url!r}")
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    if "decode_responses" in options:
        options["decode_responses"] = options["decode_responses"].lower() in ("1", "true", "yes")
    return parts.netloc, options


def words_of(args: Iterable[Any], encoder: Any) -> tuple[str, list[bytes]]:
    """A command and its arguments as bytes; "PUBSUB CHANNELS" is one argument, and two words."""
    words: list[bytes] = []
    for arg in args:
        encoded = encoder.encode(arg)
        words += encoded.split() if not words else [encoded]
    return words[0].decode().upper(), words[1:]


def decoded(reply: Any, decode: Callable[[bytes], Any]) -> Any:
    """A reply as the client's encoding has it."""
    if isinstance(reply, list):
        return [decoded(each, decode) for each in reply]
    return decode(reply) if isinstance(reply, bytes) else reply


@contextlib.contextmanager
def errors_of_redis() -> Iterator[None]:
    """What goes wrong in the segment is, for a client, its connection."""
    try:
        yield
    except Error as error:
        raise ConnectionError(str(error)) from error


def warn_of_gap(reason: str) -> None:
    """Log that messages are missing, which Redis would not tell either."""
    logger.warning("pynotify.compat.redis: messages were lost (%s)", reason)
