"""A process of the soak that needs no gateway: it notifies, and checks what all others send."""

import sys

import pynotify

_, segment, logs, name = sys.argv
last: dict[str, int] = {}
number = 0
with pynotify.connect(segment, latency_log=logs) as conn:
    conn.listen("soak")
    while True:
        number += 1
        conn.notify("soak", f"{name} {number}")
        while last.get(name) != number:
            conn.wait()
            for note in conn.poll():
                sender, text = note.payload.split()
                if last.get(sender, int(text) - 1) != int(text) - 1:
                    print("broken", f"{sender}: {text} after {last[sender]}", flush=True)
                    sys.exit(3)
                last[sender] = int(text)
