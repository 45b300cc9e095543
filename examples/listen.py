import pynotify

with pynotify.connect("app") as conn:  # the segment "app" is created on first use
    conn.listen("jobs")
    for note in conn.notifies():
        print(f"{note.payload!r} on {note.channel!r} from process {note.pid}", flush=True)
