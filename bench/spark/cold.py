"""What a command costs from its start to its end: that of this process, which runs only that.

``python -m bench.spark.cold COMMAND...`` prints seconds of processor time and of the wall clock as
JSON. It adopts what the command leaves behind and waits for it: a JVM outlives the Python that
started it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence

_PR_SET_CHILD_SUBREAPER = 36


def cost(command: Sequence[str]) -> tuple[float, float]:
    """Seconds of processor time of `command` and all that it starts, and until it ends; in a
    process of its own. Raises CalledProcessError.
    """
    done = subprocess.run(
        [sys.executable, "-m", __name__, *command], stdout=subprocess.PIPE, check=True
    )
    cpu, wall = json.loads(done.stdout)
    return cpu, wall


def _main(command: Sequence[str]) -> int:
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError("no subreaper")
    begin = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        status = process.wait()
    wall = time.monotonic() - begin
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps([used.ru_utime + used.ru_stime, wall]))
    return status


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
