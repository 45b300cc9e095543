import pynotify

with pynotify.connect("app") as conn, conn.transaction():
    conn.notify("jobs", "hello")  # both are sent, or neither
    conn.notify("jobs", "again")
