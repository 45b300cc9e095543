"""Messages as columns."""

from __future__ import annotations

from array import array
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Any

from pynotify._types import Gap, Notify

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import numpy.typing as npt


def _column(data: bytes, dtype: str) -> npt.NDArray[Any]:
    # Here and not above: a tenth of a second for every process that never looks at a column.
    import numpy as np  # noqa: PLC0415

    return np.frombuffer(data, dtype)


def split(blob: bytes, offsets: Sequence[int]) -> list[bytes]:
    """The pieces of `blob` between each two of the offsets."""
    ends = iter(offsets)
    start = next(ends)
    pieces: list[bytes] = []
    for end in ends:
        pieces.append(blob[start:end])
        start = end
    return pieces


class NotifyBatch:
    """What one call of `Connection.poll_batch` returned, as columns of length `len(batch)`.

    Iterating yields `Notify`.  The arrays are read-only and own their memory.
    """

    def __init__(
        self,
        *,
        seq: bytes,
        sent_ns: bytes,
        pid: bytes,
        sender: bytes,
        channel_index: bytes,
        offsets: bytes,
        blob: bytes,
        channels: list[str],
    ) -> None:
        self._seq = seq
        self._sent_ns = sent_ns
        self._pid = pid
        self._sender = sender
        self._channel_index = channel_index
        self._offsets = memoryview(offsets).cast("Q")
        self._blob = blob
        #: Names of the channels, for `channel_index` of this batch: another one may number them
        #: otherwise, once a channel was unlistened.
        self.channels = channels
        #: (index, Gap): the gap lies before the message of that index.
        self.gaps: list[tuple[int, Gap]] = []

    @classmethod
    def from_messages(cls, received: Sequence[Notify | Gap]) -> NotifyBatch:
        """The columns of messages that were made already."""
        messages: list[Notify] = []
        gaps: list[tuple[int, Gap]] = []
        for item in received:
            if isinstance(item, Gap):
                gaps.append((len(messages), item))
            else:
                messages.append(item)
        channels = list(dict.fromkeys(message.channel for message in messages))
        numbers = {name: number for number, name in enumerate(channels)}
        lengths = (len(message.data) for message in messages)
        batch = cls(
            seq=array("Q", [message.seq for message in messages]).tobytes(),
            sent_ns=array("q", [message.sent_ns for message in messages]).tobytes(),
            pid=array("i", [message.pid for message in messages]).tobytes(),
            sender=array("Q", [message.sender for message in messages]).tobytes(),
            channel_index=array("I", [numbers[m.channel] for m in messages]).tobytes(),
            offsets=array("Q", accumulate(lengths, initial=0)).tobytes(),
            blob=b"".join(message.data for message in messages),
            channels=channels,
        )
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
        return _column(self._seq, "uint64")

    @property
    def sent_ns(self) -> npt.NDArray[np.int64]:
        """CLOCK_MONOTONIC at the sender's commit, nanoseconds, int64."""
        return _column(self._sent_ns, "int64")

    @property
    def pid(self) -> npt.NDArray[np.int32]:
        """The senders' processes, int32."""
        return _column(self._pid, "int32")

    @property
    def backend_id(self) -> npt.NDArray[np.int32]:
        """The senders' backend slots, int32."""
        column = _column(self._sender, "uint64").astype("int32")  # the lower half
        column.flags.writeable = False
        return column

    @property
    def channel_index(self) -> npt.NDArray[np.uint32]:
        """Indices into `channels`, uint32."""
        return _column(self._channel_index, "uint32")

    def payloads(self) -> list[bytes]:
        """The payloads, one after the other."""
        return split(self._blob, self._offsets.tolist())

    def data(self, index: int) -> memoryview:
        """Payload number `index`, without copying."""
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"batch has {count} messages, no number {index}")
        index %= count
        return memoryview(self._blob)[self._offsets[index] : self._offsets[index + 1]]

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __iter__(self) -> Iterator[Notify]:
        channels = self.channels
        numbers = memoryview(self._channel_index).cast("I")
        origin = (
            memoryview(self._pid).cast("i"),
            memoryview(self._seq).cast("Q"),
            memoryview(self._sent_ns).cast("q"),
            memoryview(self._sender).cast("Q"),
        )
        return map(
            Notify,
            [channels[number] for number in numbers],
            self.payloads(),
            repeat(origin),
            range(len(self)),
        )

    def __repr__(self) -> str:
        return f"<pynotify.NotifyBatch of {len(self)} messages>"
