"""Workers that learn of an order when its row is committed, and never of one that is undone.

python examples/adapters/sqlalchemy_orders.py
"""

from __future__ import annotations

import os
import tempfile

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import pynotify
from pynotify.contrib.sqlalchemy import SessionNotifier

SEGMENT = os.environ.get("SEGMENT", "sqlalchemy-orders")
bus = SessionNotifier(SEGMENT)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    what: Mapped[str]


def watch(url: str, ready: int) -> None:
    """Ends with order 3."""
    with pynotify.connect(SEGMENT) as conn, Session(sa.create_engine(url)) as session:
        conn.listen("orders")
        os.write(ready, b".")
        for each in conn.notifies():
            order = session.get_one(Order, int(each.payload))  # it is there
            print(f"{os.getpid()} order {order.number}: {order.what}\n", end="", flush=True)
            if order.number == 3:
                return


def sell(url: str) -> None:
    with Session(sa.create_engine(url)) as session:
        for number, what in enumerate(["apples", "nothing", "pears"], 1):
            session.add(Order(number=number, what=what))
            bus.notify(session, "orders", number)
            if what == "nothing":
                session.rollback()
            else:
                session.commit()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{directory}/orders.db"
        Base.metadata.create_all(sa.create_engine(url))
        listening, ready = os.pipe()
        children = []
        for _ in range(2):
            children.append(os.fork())
            if children[-1] == 0:
                watch(url, ready)
                os._exit(0)
            os.read(listening, 1)
        sell(url)
        for child in children:
            os.waitpid(child, 0)
    bus.close()
    pynotify.unlink(SEGMENT)


if __name__ == "__main__":
    main()
