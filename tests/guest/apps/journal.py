"""What a worker process notes down, a line each, in a file of its own: $JOURNAL/PID."""

from __future__ import annotations

import os
from pathlib import Path

_JOURNAL = Path(os.environ["JOURNAL"])


def note(*words: object) -> None:
    """Opened each time, as the process may have forked or changed its user meanwhile."""
    line = " ".join(map(str, words)) + "\n"
    descriptor = os.open(_JOURNAL / str(os.getpid()), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, line.encode())
    os.close(descriptor)
