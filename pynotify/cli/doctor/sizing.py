"""How large the queue has to be: entry size x burst rate x longest absence <= ring.

That is the rule by which PostgreSQL's own queue was sized when it was designed: what is sent
while the slowest listener does not read has to fit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from pynotify._table import duration, size
from pynotify.cli.doctor.finding import Finding, ok, problem, warning

if TYPE_CHECKING:
    from pynotify._types import EngineStat

PAGE = 8192
_SMALLEST = 64
_ENTRY_HEADER = 56
_LONGEST_CHANNEL = 63
_SHORT_ABSENCE = 1.0


class Load(NamedTuple):
    """Notifications per second, bytes of payload, and seconds without a read."""

    rate: float
    payload: int
    absence: float


def entry_bytes(payload: int) -> int:
    """What a notification takes, on a channel with the longest name."""
    return (_ENTRY_HEADER + _LONGEST_CHANNEL + payload + 7) // 8 * 8


def pages_needed(load: Load) -> int:
    """The `queue_pages` that would do.

    An entry does not cross a page, or takes whole pages; one more page, as the tail may stand
    anywhere in its own.
    """
    count = math.ceil(load.rate * load.absence)
    entry = entry_bytes(load.payload)
    per_page = PAGE // entry
    pages = math.ceil(count / per_page) if per_page else count * math.ceil(entry / PAGE)
    return max(_SMALLEST, pages + 1)


def check_load(load: Load, name: str | None, stat: EngineStat | None) -> Finding:
    """Whether the segment's queue, if there is one, would do for this load."""
    needed = pages_needed(load)
    text = (
        f"{load.rate:,.0f} notifications/s of {load.payload} bytes ({entry_bytes(load.payload)} in "
        f"the queue) for {duration(load.absence)} need queue_pages={needed} ({size(needed * PAGE)})"
    )
    if stat is None:
        return ok("sizing", text)
    if stat.max_queue_pages >= needed:
        return ok("sizing", f"{text}, has {stat.max_queue_pages}", segment=name)
    return problem(
        "sizing",
        f"{text}, has {stat.max_queue_pages}",
        f"Create the segment with queue_pages={needed}, or let its listeners read more often.",
        segment=name,
    )


def estimate(name: str, before: EngineStat, now: EngineStat, seconds: float) -> Finding:
    """How long a listener may be absent at the rate at which the queue grew just now."""
    queue = now.max_queue_pages * PAGE
    written, count = now.head - before.head, now.notifications - before.notifications
    if written <= 0:
        return ok("sizing", f"a queue of {size(queue)}; it did not grow just now", segment=name)
    absence = queue * seconds / written
    text = (
        f"at the present {size(written / seconds)}/s ({count / seconds:,.0f} notifications/s) a "
        f"listener may be absent for {duration(absence)}"
    )
    if absence < _SHORT_ABSENCE:
        return warning(
            "sizing",
            text,
            "If this rate lasts: create the segment with more queue_pages "
            '(doctor --rate, --payload, --absence), or with on_full="block".',
            segment=name,
        )
    return ok("sizing", text, segment=name)
