"""What a service tells systemd (Type=notify): that it is ready, and that it stops.

The protocol is a datagram to the socket that NOTIFY_SOCKET names (sd_notify(3)).
"""

from __future__ import annotations

import contextlib
import os
import socket


def tell(state: str) -> None:
    """Tell systemd, if it has started this process and waits for it; that it fails is no error."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):
        address = f"\0{address[1:]}"
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), address)


def ready(status: str) -> None:
    """The service does what it is for from now on; `status` is what `systemctl status` shows."""
    tell(f"READY=1\nSTATUS={status}")


def stopping() -> None:
    """It has been asked to end."""
    tell("STOPPING=1")
