"""Topics and channels: every message to each channel of its topic, and there to one consumer.

The objects are made by a connection: `Connection.topic`, `Topic.channel`, `Channel.consumer`.  The
state is in the segment, and its rules are in the core; here is what Python adds: types, waiting,
`with` and `async with`, and a consumer's loop with NSQ's back-off.
"""

from pynotify._public import public
from pynotify.topics._channel import AsyncChannel, Channel
from pynotify.topics._consumer import Consumer
from pynotify.topics._content import MessageIds
from pynotify.topics._message import AsyncMessage, Message
from pynotify.topics._stats import ChannelStats, ConsumerStats, PeekedMessage, TopicStats
from pynotify.topics._topic import AsyncTopic, Topic

__all__ = [
    "AsyncChannel",
    "AsyncMessage",
    "AsyncTopic",
    "Channel",
    "ChannelStats",
    "Consumer",
    "ConsumerStats",
    "Message",
    "MessageIds",
    "PeekedMessage",
    "Topic",
    "TopicStats",
]


public(
    *(AsyncChannel, AsyncMessage, AsyncTopic, Channel, ChannelStats, Consumer, ConsumerStats),
    *(Message, MessageIds, PeekedMessage, Topic, TopicStats),
)
