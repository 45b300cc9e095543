"""The options of a segment: what a caller may ask for, checked and turned into C's terms."""

from __future__ import annotations

import os

from pynotify._ffi import ffi, lib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_UINT32_MAX = 2**32 - 1

#: The smallest and the largest value; the core knows the limits that depend on each other.
COUNTS = {
    "queue_pages": (64, _UINT32_MAX),
    "max_queue_pages": (64, _UINT32_MAX),
    "max_backends": (1, 65536),
    "max_channels": (1, _UINT32_MAX),
    "max_subscriptions": (1, _UINT32_MAX),
    "max_generations": (1, _UINT32_MAX),
    "max_payload": (1, _UINT32_MAX),
    "max_channel_name": (1, 255),
    "topic_memory": (1, 2**63 - 1),
    "max_body": (1, _UINT32_MAX),
    "max_topics": (1, 65536),
    "max_topic_channels": (1, 65536),
    "max_consumers": (1, 65535),
}
_CHOICES = {
    "on_full": {
        "error": lib.PN_FULL_ERROR,
        "block": lib.PN_FULL_BLOCK,
        "drop-slowest": lib.PN_FULL_DROP_SLOWEST,
    },
    "signaling": {"targeted": lib.PN_SIGNAL_TARGETED, "broadcast": lib.PN_SIGNAL_BROADCAST},
}


#: Options that are seconds.
SECONDS = frozenset({"full_timeout"})
#: The names of all options.
OPTIONS = frozenset({*COUNTS, *_CHOICES, *SECONDS, "data_dir"})


def _count(name: str, value: object) -> int:
    low, high = COUNTS[name]
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} must be a whole number from {low} to {high}, not {value!r}")
    return value


def _choice(name: str, value: object) -> int:
    choices = _CHOICES[name]
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return choices[value]


def _seconds(name: str, value: object) -> int:
    # Bounded so that the sum with a clock reading stays within 64 bits; refuses NaN as well.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1e9:
        raise ValueError(f"{name} must be seconds from 0 to 1e9, not {value!r}")
    return round(value * 1_000_000_000)


def _directory(name: str, value: object) -> bytes:
    """Absolute and without links, as the core keeps it."""
    if not isinstance(value, (str, bytes, os.PathLike)) or not os.fspath(value):
        raise ValueError(f"{name} must be a path or None, not {value!r}")
    try:
        path = os.fsencode(os.path.realpath(value))
    except ValueError as error:  # a NUL byte
        raise ValueError(f"{name} cannot be {value!r}: {error}") from error
    if len(path) >= lib.PN_DATA_DIR_SIZE:
        raise ValueError(
            f"{name} must have fewer than {lib.PN_DATA_DIR_SIZE} bytes, has {len(path)}: {value!r}"
        )
    return path


_ARENA_PAGE = 4096  # topic_memory is a whole number of them


class SegmentOptions:
    """The options that one caller named; the others are as the segment's creator wants them."""

    __slots__ = ("_fields", "_origin")

    def __init__(
        self,
        options: Mapping[str, object],
        configured: Mapping[str, tuple[object, str]] | None = None,
    ) -> None:
        """`options`: a call's arguments.  `configured`: others, and where each is from."""
        #: Field of pn_options -> value, and where the value is from.
        self._fields: dict[str, int | bytes] = {}
        self._origin: dict[str, str] = {}
        for name, value in options.items():
            self._take(name, value)
        for name, (value, origin) in (configured or {}).items():
            if name not in options:
                self._take_configured(name, value, origin)

    def _take_configured(self, name: str, value: object, origin: str) -> None:
        before = set(self._fields)
        try:
            self._take(name, value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{origin}: {error}") from None
        self._origin.update(dict.fromkeys(self._fields.keys() - before, origin))

    def _take(self, name: str, value: object) -> None:
        if name in COUNTS:
            count = _count(name, value)
            if name == "topic_memory":  # as the core does
                count = -(-count // _ARENA_PAGE) * _ARENA_PAGE
            self._fields[name] = count
        elif name in _CHOICES:
            self._fields[name] = _choice(name, value)
        elif name in SECONDS:
            self._fields[f"{name}_ns"] = _seconds(name, value)
        elif name == "data_dir":
            self._fields[name] = b"" if value is None else _directory(name, value)
        else:
            raise TypeError(f"unknown segment option {name!r}")

    def to_native(self) -> Any:
        """A pn_options with the defaults filled in, for creating."""
        native = ffi.new("pn_options *")
        lib.pn_options_default(native)
        for field, value in self._fields.items():
            setattr(native, field, value)
        return native

    def mismatches(self, native: Any) -> list[str]:
        """Where the options of an existing segment are not those that were asked for."""
        return [
            f"{_spell(field, _value(native, field))}, not {_spell(field, value)}"
            + (f" ({self._origin[field]})" if field in self._origin else "")
            for field, value in self._fields.items()
            if _value(native, field) != value
        ]


def _value(native: Any, field: str) -> int | bytes:
    value = getattr(native, field)
    return value if isinstance(value, int) else ffi.string(value)


def _spell(field: str, value: int | bytes) -> str:
    """A field of pn_options as the user writes the option."""
    if isinstance(value, bytes):
        return f"{field}={os.fsdecode(value) if value else None!r}"
    if field == "full_timeout_ns":
        return f"full_timeout={value / 1e9}"
    for text, number in _CHOICES.get(field, {}).items():
        if number == value:
            return f'{field}="{text}"'
    return f"{field}={value}"
