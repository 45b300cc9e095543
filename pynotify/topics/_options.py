"""What a caller may ask of a topic, a channel or a consumer, checked and turned into C's terms."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from pynotify._ffi import ffi, lib
from pynotify.errors import InvalidTopicName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_OVERFLOW = {
    "disk": lib.PN_OVERFLOW_DISK,
    "error": lib.PN_OVERFLOW_ERROR,
    "drop-oldest": lib.PN_OVERFLOW_DROP_OLDEST,
    "drop-new": lib.PN_OVERFLOW_DROP_NEW,
}
_FSYNC = {
    "none": lib.PN_FSYNC_NONE,
    "interval": lib.PN_FSYNC_INTERVAL,
    "always": lib.PN_FSYNC_ALWAYS,
}
OVERFLOW_NAMES: Final = {number: name for name, number in _OVERFLOW.items()}
FSYNC_NAMES: Final = {number: name for name, number in _FSYNC.items()}

_BILLION = 1_000_000_000
#: Seconds that are as good as for ever, and leave room for a reading of the clock in 63 bits.
_LONGEST = 4e9
_MOST_IN_FLIGHT = 65535
_MOST_ATTEMPTS = 65535


class _Omitted:
    """The value of an option that was not given."""

    def __init__(self, meaning: str) -> None:
        self._meaning = meaning

    def __repr__(self) -> str:
        return self._meaning


#: The default of an option of a topic or channel: the documented default for the first caller, and
#: what it was made with for later ones.
OMITTED: Any = _Omitted("as it was made")
#: What configure() leaves.
UNCHANGED: Any = _Omitted("as it is")
#: The default of an option of a consumer: its channel's, or the documented default.
CHANNELS: Any = _Omitted("as its channel is set")


def encode_name(name: str, what: str) -> bytes:
    """The name as bytes for the core, which judges it."""
    if not isinstance(name, str):
        raise TypeError(f"{what} name must be a str, not {type(name).__name__}")
    return str.encode(name, "utf-8", "surrogatepass")


@contextmanager
def naming(name: str, what: str) -> Iterator[None]:
    """Name the bad name in the error: the core does not repeat it, since it may be anything."""
    try:
        yield
    except InvalidTopicName as error:
        raise InvalidTopicName(f"bad {what} name {name!r}", hint=error.hint or "") from None


def seconds_to_ns(name: str, value: float, *, at_least: float = 0.0) -> int:
    """Finite seconds; what is longer than a century is a century."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    if not math.isfinite(value) or value < at_least:
        raise ValueError(f"{name} must be finite and at least {at_least:g} seconds, is {value}")
    return round(min(value, _LONGEST) * _BILLION)


def positive_to_ns(name: str, value: float) -> int:
    """Finite seconds above 0, however short."""
    result = seconds_to_ns(name, value)
    if not value:
        raise ValueError(f"{name} must be more than 0 seconds")
    return max(result, 1)


def topic_options(given: Mapping[str, Any]) -> Any:
    """A pn_topic_options with what was not omitted."""
    native = ffi.new("pn_topic_options *")
    for name, value in given.items():
        if not isinstance(value, _Omitted):
            _SET[name](native, value)
    return native


def _set_durable(native: Any, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"durable must be True or False, not {value!r}")
    native.durable = value
    native.given |= lib.PN_TOPIC_DURABLE


def _set_fsync(native: Any, value: object) -> None:
    native.fsync = _one_of("fsync", value, _FSYNC)
    native.given |= lib.PN_TOPIC_FSYNC


def _set_overflow(native: Any, value: object) -> None:
    native.overflow = _one_of("overflow", value, _OVERFLOW)
    native.given |= lib.PN_TOPIC_OVERFLOW


def _set_max_depth(native: Any, value: object) -> None:
    native.max_depth = 0 if value is None else whole("max_depth", value, 1, 2**63 - 1)
    native.given |= lib.PN_TOPIC_MAX_DEPTH


def _set_default_ttl(native: Any, value: Any) -> None:
    native.default_ttl_ns = 0 if value is None else positive_to_ns("default_ttl", value)
    native.given |= lib.PN_TOPIC_DEFAULT_TTL


def _set_max_memory(native: Any, value: object) -> None:
    native.max_memory = 0 if value is None else whole("max_memory", value, 4096, 2**63 - 1)
    native.given |= lib.PN_TOPIC_MAX_MEMORY


def _set_max_disk_bytes(native: Any, value: object) -> None:
    native.max_disk_bytes = 0 if value is None else whole("max_disk_bytes", value, 4096, 2**63 - 1)
    native.given |= lib.PN_TOPIC_MAX_DISK_BYTES


_SET: Final = {
    "default_ttl": _set_default_ttl,
    "max_memory": _set_max_memory,
    "max_disk_bytes": _set_max_disk_bytes,
    "durable": _set_durable,
    "fsync": _set_fsync,
    "overflow": _set_overflow,
    "max_depth": _set_max_depth,
}


def channel_bound(max_consumers: object) -> int:
    """The bound of pn_topic_channel_open(): 0, the default, leaves it as it was made."""
    return whole("max_consumers", max_consumers, 0, _MOST_IN_FLIGHT) or -1


class ChannelOptions:
    """What a channel is set to, of which some may be left out; `native` lives as long as this."""

    __slots__ = ("_dead_letter", "_name", "native")

    def __init__(self, *, max_attempts: Any, dead_letter: Any, msg_timeout: Any) -> None:
        native = ffi.new("pn_channel_options *")
        self._dead_letter, self._name = dead_letter, None
        if not isinstance(max_attempts, _Omitted):
            native.given |= lib.PN_CHANNEL_MAX_ATTEMPTS
            native.max_attempts = (
                -1
                if max_attempts is None
                else whole("max_attempts", max_attempts, 0, _MOST_ATTEMPTS)
            )
        if not isinstance(msg_timeout, _Omitted):
            native.given |= lib.PN_CHANNEL_MSG_TIMEOUT
            native.msg_timeout_ns = (
                0 if msg_timeout is None else positive_to_ns("msg_timeout", msg_timeout)
            )
        if not isinstance(dead_letter, _Omitted):
            native.given |= lib.PN_CHANNEL_DEAD_LETTER
            self._name = _name_dead_letter(native, dead_letter)
        self.native = native

    def naming(self) -> AbstractContextManager[None]:
        """Name the dead letter topic in an error, see `naming`."""
        return _naming_dead_letter(self._dead_letter)


class ConsumerOptions:
    """The options of one consumer; `native` lives as long as this."""

    __slots__ = ("_dead_letter", "_name", "max_in_flight", "native")

    def __init__(
        self,
        *,
        max_in_flight: int,
        msg_timeout: Any,
        max_msg_timeout: float,
        max_attempts: Any,
        sample_rate: int | None,
        dead_letter: Any,
    ) -> None:
        native = ffi.new("pn_consumer_options *")
        self.max_in_flight = whole("max_in_flight", max_in_flight, 1, _MOST_IN_FLIGHT)
        native.max_in_flight = self.max_in_flight
        native.max_msg_timeout_ns = positive_to_ns("max_msg_timeout", max_msg_timeout)
        if isinstance(msg_timeout, _Omitted):
            native.fallback |= lib.PN_CHANNEL_MSG_TIMEOUT
            msg_timeout = 60.0
        if isinstance(max_attempts, _Omitted):
            native.fallback |= lib.PN_CHANNEL_MAX_ATTEMPTS
            max_attempts = 5
        if isinstance(dead_letter, _Omitted):
            native.fallback |= lib.PN_CHANNEL_DEAD_LETTER
            dead_letter = None
        native.msg_timeout_ns = positive_to_ns("msg_timeout", msg_timeout)
        if native.msg_timeout_ns > native.max_msg_timeout_ns:
            raise ValueError(
                f"msg_timeout ({msg_timeout}) must not be longer than max_msg_timeout "
                f"({max_msg_timeout})"
            )
        native.max_attempts = whole("max_attempts", max_attempts, 0, _MOST_ATTEMPTS)
        if sample_rate is not None:
            native.sample_rate = whole("sample_rate", sample_rate, 1, 99)
        self._name = _name_dead_letter(native, dead_letter)
        self.native = native
        self._dead_letter = dead_letter

    def naming(self) -> AbstractContextManager[None]:
        """Name the dead letter topic in an error, see `naming`."""
        return _naming_dead_letter(self._dead_letter)


def _name_dead_letter(native: Any, name: str | None) -> Any:
    """Let the options name it; the result has to live as long as they do."""
    if name is None:
        return None
    encoded = encode_name(name, "dead letter topic")
    kept = ffi.new("char[]", encoded)
    native.dead_letter = kept
    native.dead_letter_len = len(encoded)
    return kept


def _naming_dead_letter(name: Any) -> AbstractContextManager[None]:
    return naming(name if isinstance(name, str) else "", "dead letter topic")


def _one_of(name: str, value: object, choices: Mapping[str, int]) -> int:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return choices[value]


def whole(name: str, value: object, low: int, high: int) -> int:
    """The whole number of an option.  Raises TypeError, and ValueError outside `low` to `high`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be from {low} to {high}, is {value}")
    return value
