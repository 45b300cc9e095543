import os

import pynotify

name = os.environ.get("SEGMENT", "app")  # made by whoever comes first
with pynotify.connect(name) as conn:
    conn.listen("jobs")
    if os.fork() == 0:  # any process of this user would do
        pynotify.get(name).notify("jobs", "hello")
        os._exit(0)
    for note in conn.notifies(stop_after=1):
        print(f"{note.payload!r} on {note.channel!r} from process {note.pid}")
