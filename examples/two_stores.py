"""Commit a database and its notification together: what can fail is done before either commits.

`prepare()` reserves room in the queue, and holds no lock meanwhile.  After it the notification
cannot fail for want of room; an error of the database rolls both back.  What remains: a process
killed between the two commits has stored the row and has not notified.
"""

import os
import sqlite3

import pynotify

NAME = os.environ.get("SEGMENT", "two-stores")


def add_order(db: sqlite3.Connection, conn: pynotify.Connection, number: int) -> None:
    with conn.transaction() as tx:
        db.execute("INSERT INTO orders VALUES (?)", (number,))
        conn.notify("orders", str(number))
        tx.prepare()
        db.commit()


def main() -> None:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY)")
    with pynotify.connect(NAME) as conn:
        conn.listen("orders")
        add_order(db, conn, 1)
        try:
            add_order(db, conn, 1)
        except sqlite3.IntegrityError as error:
            db.rollback()
            print(f"rolled back: {error}")
        add_order(db, conn, 2)
        print("rows:", [number for (number,) in db.execute("SELECT number FROM orders")])
        print("heard:", [note.payload for note in conn.poll()])


if __name__ == "__main__":
    main()
