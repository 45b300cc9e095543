"""Names of the frameworks as names of channels, which are shorter."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from pynotify._async_connection import AsyncConnection
from pynotify._connect import connect
from pynotify.errors import LayoutMismatch

if TYPE_CHECKING:
    from typing import Unpack

    from pynotify._connection import Connection
    from pynotify._open_options import OpenOptions

#: What adapters ask for when they make the segment: most names fit as they are then.
PREFERRED: OpenOptions = {"max_channel_name": 255}


def fitting(prefix: str, name: str, limit: int) -> str:
    """The prefix and the name, or a digest of the name where both have more than `limit` bytes."""
    whole = f"{prefix}:{name}"
    if len(whole.encode()) <= limit and "\0" not in whole:
        return whole
    return f"{prefix}#{blake2b(name.encode(), digest_size=16).hexdigest()}"


def connect_preferring(
    segment: str, wakeup: str | int | None, **options: Unpack[OpenOptions]
) -> Connection:
    """Connect; a segment that is made by it takes names of 255 bytes."""
    preferred: OpenOptions = {**PREFERRED, **options}
    try:
        return connect(segment, wakeup=wakeup, **preferred)
    except LayoutMismatch:
        return connect(segment, wakeup=wakeup, **options)


async def connect_async_preferring(
    segment: str, wakeup: str | int | None, **options: Unpack[OpenOptions]
) -> AsyncConnection:
    """The same for the running event loop."""
    preferred: OpenOptions = {**PREFERRED, **options}
    try:
        return await AsyncConnection.connect(segment, wakeup=wakeup, **preferred)
    except LayoutMismatch:
        return await AsyncConnection.connect(segment, wakeup=wakeup, **options)


def limit_of(connection: Connection | AsyncConnection) -> int:
    """Bytes that a channel's name may have in the connection's segment."""
    return int(connection.link.handle.options().max_channel_name)
