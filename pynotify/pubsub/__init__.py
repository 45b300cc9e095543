"""Objects of any size over NOTIFY, in a format that any language speaks (docs/pubsub.md).

ps = pynotify.PubSub(conn)
ps.subscribe("channel:A")
ps.publish("channel:A", {"a": 1})
for channel, obj, pid in ps:
    print(channel, obj, pid)
"""

from pynotify.pubsub._assembly import PubSubStats
from pynotify.pubsub._async import AsyncPubSub
from pynotify.pubsub._dispatch import Received
from pynotify.pubsub._sync import PubSub

__all__ = ["AsyncPubSub", "PubSub", "PubSubStats", "Received"]

for _public in (AsyncPubSub, PubSub, PubSubStats):
    _public.__module__ = "pynotify"
del _public
