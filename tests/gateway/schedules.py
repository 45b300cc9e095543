"""Several clients, step by step, on a PostgreSQL or on a gateway.

When an idle client hears of a notification is its server's affair, so what is compared is what
each step was answered, and apart from that all that each client heard, in order.  Clients are
named; which of them a notification came from stands for its pid.
"""

from __future__ import annotations

import random
from pathlib import Path

from gateway.wire import SYNC, Answer, Client, bind, describe, execute, parse
from receiving import wait_until

Schedule = list[tuple[str, str | bytes]]
Result = tuple[list[list[Answer]], dict[str, list[Answer]]]


def play(path: Path, names: str, schedule: Schedule, heard: int | None = None) -> Result:
    """The answers of all steps, and what each client heard; `heard` messages are awaited."""
    clients = {name: Client(path) for name in names}
    listened: dict[str, list[Answer]] = {name: [] for name in names}
    answers = []
    try:
        for client in clients.values():
            client.start()
        for name, step in schedule:
            answers.append(_keep(clients[name].ask(step), listened[name]))

        def all_heard() -> bool:
            for name, client in clients.items():
                _keep(client.ask("SELECT 1"), listened[name])
            return heard is None or sum(map(len, listened.values())) >= heard

        wait_until(all_heard, f"{heard} notifications")
        names_of = {client.pid: name for name, client in clients.items()}
        return answers, {
            name: [(names_of[pid], channel, payload) for _kind, pid, channel, payload in messages]
            for name, messages in listened.items()
        }
    finally:
        for client in clients.values():
            client.close()


def _keep(answers: list[Answer], listened: list[Answer]) -> list[Answer]:
    """Those that are no notifications."""
    listened += [answer for answer in answers if answer[0] == "A"]
    return [answer for answer in answers if answer[0] != "A"]


# ---- PostgreSQL's isolation tests (T-ISO of the reference) -------------------------------------

_NOTIFYS = (
    "BEGIN; NOTIFY c1, 'payload'; NOTIFY c2, 'payload'; NOTIFY c1, 'payload'; NOTIFY c2, 'payload';"
    " SAVEPOINT s1; NOTIFY c1, 'payload'; NOTIFY c2, 'payload'; NOTIFY c1, 'payloads';"
    " NOTIFY c2, 'payloads'; RELEASE SAVEPOINT s1; SAVEPOINT s2; NOTIFY c1, 'rpayload';"
    " NOTIFY c2, 'rpayloads'; ROLLBACK TO SAVEPOINT s2; COMMIT"
)
_MANY = "; ".join(f"NOTIFY c1, 'msg{i}'" for i in [*range(1, 18), 1])
_BIG = "SELECT count(pg_notify('c1', s::text)) FROM generate_series(1, 1000) s"
_USAGE = "SELECT pg_notification_queue_usage() > 0 AS nonzero"

#: Step: the client, and what it says.
STEPS: dict[str, tuple[str, str]] = {
    "listenc": ("n", "LISTEN c1; LISTEN c2"),
    "notify1": ("n", "NOTIFY c1"),
    "notify2": ("n", "NOTIFY c2, 'payload'"),
    "notify3": ("n", "NOTIFY c3, 'payload3'"),
    "notifyf": ("n", "SELECT pg_notify('c2', NULL)"),
    "notifyd1": ("n", "NOTIFY c2, 'payload'; NOTIFY c1; NOTIFY \"c2\", 'payload'"),
    "notifyd2": ("n", "NOTIFY c1; NOTIFY c1; NOTIFY c1, 'p1'; NOTIFY c1, 'p2'"),
    "notifys1": ("n", _NOTIFYS),
    "notifys_simple": (
        "n",
        "BEGIN; SAVEPOINT s1; NOTIFY c1, 'simple1'; NOTIFY c2, 'simple2'; RELEASE s1; COMMIT",
    ),
    "many": ("n", _MANY),
    "usage": ("n", _USAGE),
    "bignotify": ("n", _BIG),
    "llisten": ("l", "LISTEN c1; LISTEN c2"),
    "lcheck": ("l", "SELECT 1 AS x"),
    "lbegin": ("l", "BEGIN"),
    "lbegins": ("l", "BEGIN ISOLATION LEVEL SERIALIZABLE"),
    "lcommit": ("l", "COMMIT"),
    "lunlisten_all": ("l", "BEGIN; LISTEN c1; UNLISTEN *; COMMIT"),
    "l2listen": ("m", "LISTEN c1"),
    "l2begin": ("m", "BEGIN"),
    "l2commit": ("m", "COMMIT"),
    "l2stop": ("m", "UNLISTEN *"),
    "sbegin": ("s", "BEGIN"),
    "slisten_outer": ("s", "LISTEN c3"),
    "ssavepoint": ("s", "SAVEPOINT s1"),
    "slisten": ("s", "LISTEN c1; LISTEN c2"),
    "srelease": ("s", "RELEASE SAVEPOINT s1"),
    "srollback": ("s", "ROLLBACK TO SAVEPOINT s1"),
    "scommit": ("s", "COMMIT"),
    "snotify": ("s", "NOTIFY c1, 'subxact_test'"),
}

PERMUTATIONS: dict[str, str] = {
    "T-ISO-1": "listenc notify1 notify2 notify3 notifyf",
    "T-ISO-2": "listenc notifyd1 notifyd2 notifys1",
    "T-ISO-3": "listenc notifys_simple",
    "T-ISO-4": "sbegin ssavepoint slisten srelease scommit snotify",
    "T-ISO-5": "sbegin slisten_outer ssavepoint slisten srelease scommit snotify",
    "T-ISO-6": "sbegin ssavepoint slisten srollback scommit snotify",
    "T-ISO-7": "lunlisten_all notify1 lcheck",
    "T-ISO-8": "listenc many",
    "T-ISO-9": "llisten notify1 notify2 notify3 notifyf lcheck",
    "T-ISO-10": "listenc llisten notify1 notify2 notify3 notifyf lcheck",
    "T-ISO-11": "l2listen l2begin notify1 lbegins llisten lcommit l2commit l2stop",
    "T-ISO-12": "llisten notify1 lcheck",
    "T-ISO-13": "llisten lbegin usage bignotify usage lcommit",
}


def permutation(name: str) -> Schedule:
    return [STEPS[step] for step in PERMUTATIONS[name].split()]


# ---- random schedules --------------------------------------------------------------------------

_CHANNELS = ("a", "b", '"C c"')


def _statement(dice: random.Random) -> str:
    channel = dice.choice(_CHANNELS)
    name = dice.choice(("s", "t"))
    payload = dice.choice(("", "x", "y", str(dice.randrange(1000))))
    quoted = channel.strip('"')
    return dice.choice(
        (
            *(f"NOTIFY {channel}, '{payload}'" for _ in range(4)),
            *(f"SELECT pg_notify('{quoted}', '{payload}')" for _ in range(3)),
            *("BEGIN" for _ in range(3)),
            *("COMMIT" for _ in range(3)),
            "ROLLBACK",
            f"SAVEPOINT {name}",
            f"ROLLBACK TO {name}",
            f"RELEASE {name}",
            "SELECT 1/0",
            "nonsense",
            "SELECT pg_notify(NULL, 'x')",
            "",
            "COMMIT AND CHAIN",
            "SELECT 1",
        )
    )


def _listen(dice: random.Random) -> str:
    channel = dice.choice(_CHANNELS)
    return dice.choice(
        (*[f"LISTEN {channel}"] * 3, f"UNLISTEN {channel}", "UNLISTEN *", "DISCARD ALL")
    )


def _pipeline(dice: random.Random) -> bytes:
    batch = b""
    for _ in range(dice.randrange(1, 4)):
        batch += parse(_statement(dice)) + bind() + describe() + execute()
    return batch + SYNC


def random_schedule(seed: int, names: str, steps: int) -> Schedule:
    """Reproducible by its seed; all transactions end.

    LISTEN and UNLISTEN stand outside of blocks.  A backend of PostgreSQL that commits one filters
    what it has not read yet by the new set, which was committed before; a gateway's does not.
    """
    dice = random.Random(seed)
    schedule: Schedule = []
    for _ in range(steps):
        name = dice.choice(names)
        if dice.random() < 0.2:
            schedule += [(name, "ROLLBACK"), (name, _listen(dice))]
        elif dice.random() < 0.2:
            schedule.append((name, _pipeline(dice)))
        else:
            texts = [_statement(dice) for _ in range(dice.choice((1, 1, 1, 2, 4)))]
            schedule.append((name, "; ".join(texts)))
    return schedule + [(name, "ROLLBACK") for name in names]
