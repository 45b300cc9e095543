"""kombu: a transport over a segment, so that Celery needs no broker on one host.

```
import pynotify.contrib.kombu  # makes the scheme known

app = Celery(broker="pynotify://app", backend="rpc://")
```

A queue is a topic of the segment.  What is declared by one process (exchanges, queues, bindings) is
there for all.  A message is acknowledged when its consumer says so; that of a process which is
killed comes to another one at once.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

from pynotify.contrib.kombu._channel import Channel
from pynotify.contrib.kombu._transport import Transport

__all__ = ["Channel", "Transport"]

TRANSPORT_ALIASES.setdefault("pynotify", "pynotify.contrib.kombu:Transport")
