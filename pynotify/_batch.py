"""Messages as columns."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from pynotify._encoding import decode_headers
from pynotify._hot import Columns
from pynotify._public import public
from pynotify._types import Gap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Buffer

    from pynotify._types import Notify


def _column(data: Buffer, dtype: str) -> npt.NDArray[Any]:
    # Here and not above: a tenth of a second for every process that never looks at a column.
    import numpy as np  # noqa: PLC0415

    return np.frombuffer(memoryview(data), dtype)


def _number(numbers: dict[str, int], pattern: str | None) -> int:
    return -1 if pattern is None else numbers[pattern]


class NotifyBatch:
    """What one call of `Connection.poll_batch` returned, as columns of length `len(batch)`.

    Iterating yields `Notify`.  The arrays are read-only, and valid for as long as they are referred
    to; each keeps the memory of the whole batch.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        #: Names of the channels, and of patterns, for `channel_index` and `pattern_index` of this
        #: batch: another one may number them otherwise.
        self.channels = columns.channels
        #: (index, Gap): the gap lies before the message of that index.
        self.gaps: list[tuple[int, Gap]] = []

    @classmethod
    def from_messages(cls, received: Sequence[Notify | Gap]) -> NotifyBatch:
        """The columns of messages that were made already."""
        kept: list[Notify] = []
        gaps: list[tuple[int, Gap]] = []
        for item in received:
            if isinstance(item, Gap):
                gaps.append((len(kept), item))
            else:
                kept.append(item)
        patterns = [message.pattern for message in kept]
        if not any(patterns):
            patterns = []
        names = [message.channel for message in kept]
        channels = list(dict.fromkeys(names + [name for name in patterns if name is not None]))
        numbers = {name: number for number, name in enumerate(channels)}
        lengths = (len(message.data) for message in kept)
        headers = [message.raw_headers for message in kept]
        if not any(headers):
            headers_offsets = b""
        else:
            headers_offsets = array("Q", accumulate(map(len, headers), initial=0)).tobytes()
        columns = Columns(
            array("Q", [message.seq for message in kept]).tobytes(),
            array("q", [message.sent_ns for message in kept]).tobytes(),
            array("i", [message.pid for message in kept]).tobytes(),
            array("Q", [message.sender for message in kept]).tobytes(),
            array("I", [numbers[message.channel] for message in kept]).tobytes(),
            array("i", [_number(numbers, pattern) for pattern in patterns]).tobytes(),
            headers_offsets,
            b"".join(headers),
            array("Q", accumulate(lengths, initial=0)).tobytes(),
            b"".join(message.data for message in kept),
            channels,
            0,
        )
        batch = cls(columns)
        batch.gaps = gaps
        return batch

    def in_order(self) -> list[Notify | Gap]:
        """Messages and gaps, as `Connection.poll` returns them."""
        items: list[Notify | Gap] = list(self)
        for index, gap in reversed(self.gaps):
            items.insert(index, gap)
        return items

    @property
    def seq(self) -> npt.NDArray[np.uint64]:
        """Commit sequence numbers, uint64."""
        return _column(self._columns.seq, "uint64")

    @property
    def sent_ns(self) -> npt.NDArray[np.int64]:
        """CLOCK_MONOTONIC at the sender's commit, nanoseconds, int64."""
        return _column(self._columns.sent_ns, "int64")

    @property
    def pid(self) -> npt.NDArray[np.int32]:
        """The senders' processes, int32."""
        return _column(self._columns.pid, "int32")

    @property
    def backend_id(self) -> npt.NDArray[np.int32]:
        """The senders' backend slots, int32."""
        column = _column(self._columns.sender, "uint64").astype("int32")  # the lower half
        column.flags.writeable = False
        return column

    @property
    def channel_index(self) -> npt.NDArray[np.uint32]:
        """Indices into `channels`, uint32."""
        return _column(self._columns.channel_index, "uint32")

    @property
    def pattern_index(self) -> npt.NDArray[np.int32]:
        """`Notify.pattern` as indices into `channels`, int32; -1 where it is None."""
        column = memoryview(self._columns.pattern_index)
        if column.nbytes:
            return _column(column, "int32")
        # None of them came by a pattern.
        import numpy as np  # noqa: PLC0415

        return np.broadcast_to(np.int32(-1), len(self))

    def payloads(self) -> list[bytes]:
        """The payloads, one after the other."""
        return self._columns.payloads()

    def data(self, index: int) -> memoryview:
        """Payload number `index`, without copying."""
        begin, end = self._columns.extent(self._at(index))
        return memoryview(self._columns.blob)[begin:end]

    def headers(self, index: int) -> dict[str, str]:
        """The headers of message number `index`, as `Notify.headers`."""
        return decode_headers(self._columns.headers(self._at(index)))

    def _at(self, index: int) -> int:
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"batch has {count} messages, no number {index}")
        return index % count

    def __len__(self) -> int:
        return len(self._columns)

    def __iter__(self) -> Iterator[Notify]:
        return iter(self._columns.messages())

    def __repr__(self) -> str:
        return f"<pynotify.NotifyBatch of {len(self)} messages>"


public(NotifyBatch)
