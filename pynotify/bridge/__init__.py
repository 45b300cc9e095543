"""A bridge to PostgreSQL: one connection for all listeners of a host (docs/bridge.md).

with pynotify.bridge.PostgresBridge("app", channels=["orders"]) as bridge:
    bridge.run()
"""

from pynotify.bridge._bridge import BridgeStats, PostgresBridge

__all__ = ["BridgeStats", "PostgresBridge"]

for _public in (BridgeStats, PostgresBridge):
    _public.__module__ = "pynotify.bridge"
