"""The options of a segment, as type checkers see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    import os


class OpenOptions(TypedDict, total=False):
    """The options of a segment, which are fixed when it is created.

    A later opener may omit them; another value than the segment has is a `LayoutMismatch`.
    """

    #: Pages of 8 KiB in the shared ring (1024).
    queue_pages: int
    #: Above `queue_pages`: pages beyond the ring go to files in `data_dir` (`queue_pages`).
    max_queue_pages: int
    #: For pages beyond the ring, for the overflow of topics and for durable ones (None).
    data_dir: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None
    #: What a notifier meets when the queue is full ("error").
    on_full: Literal["error", "block", "drop-slowest"]
    #: Seconds for which "block" waits (5.0).
    full_timeout: float
    #: Slots in the backend array (1024).
    max_backends: int
    #: Channels that are listened to (4096).
    max_channels: int
    #: Pairs of a listener and a channel (16384).
    max_subscriptions: int
    #: Shared counters (1024).
    max_generations: int
    #: Bytes of a payload (7999).
    max_payload: int
    #: Bytes of a channel's name (63).
    max_channel_name: int
    #: Bytes for the messages of all topics (16 MiB).
    topic_memory: int
    #: Bytes of a message's body (1 MiB).
    max_body: int
    #: Topics (256).
    max_topics: int
    #: Channels of all topics (1024).
    max_topic_channels: int
    #: Consumers of all channels (1024).
    max_consumers: int
    #: "broadcast" signals every listener of the database, to measure the difference ("targeted").
    signaling: Literal["targeted", "broadcast"]
