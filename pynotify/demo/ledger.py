"""What the processes tell the parent, as notifications on one channel.

A notifier's entry is part of the transaction that it describes.  So it exists if and only if the
transaction was committed, whichever process is killed: the parent knows to the last notification
what a dead notifier has sent, and its commit number says which listeners were owed it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pynotify

CHANNEL = "demo.ledger"
CONTROL = "demo.control"
START = b"start"
# No line of source text contains a NUL: the end of a channel cannot be mistaken.
END = b"\0end"


@dataclass(frozen=True)
class Entry:
    """One committed transaction of a notifier.

    `rolled_back` counts what was undone since the notifier's previous commit.
    """

    notifier: int
    number: int
    collapsed: int
    rolled_back: int
    counts: Counter[int]

    def encode(self) -> str:
        """The line of the ledger."""
        counts = " ".join(f"{channel}:{count}" for channel, count in self.counts.items())
        return (
            f"sent {self.notifier} {self.number} {self.collapsed} {self.rolled_back} {counts}"
        ).rstrip()

    @staticmethod
    def decode(words: list[str]) -> Entry:
        """From the words after "sent"."""
        notifier, number, collapsed, rolled_back = map(int, words[:4])
        counts = (word.split(":") for word in words[4:])
        return Entry(
            notifier,
            number,
            collapsed,
            rolled_back,
            Counter({int(channel): int(count) for channel, count in counts}),
        )


class GarbledEntryError(Exception):
    """The parent was handed what no process of the demonstration has sent it."""


@dataclass
class NotifierAccount:
    """What one notifier and its replacement have committed."""

    last_number: int = -1
    transactions: int = 0
    committed: int = 0
    collapsed: int = 0
    rolled_back: int = 0
    done: bool = False


@dataclass
class Ledger:
    """The parent's accounts."""

    notifiers: dict[int, NotifierAccount] = field(default_factory=dict)
    #: Committed, per channel.
    committed: Counter[int] = field(default_factory=Counter)
    #: (commit number, notifications per channel) of each transaction.
    commits: list[tuple[int, Counter[int]]] = field(default_factory=list)
    #: Process -> number of the commit that made it listen.
    listening: dict[str, int] = field(default_factory=dict)
    #: Listener -> how many it was handed, per channel.
    heard: dict[str, Counter[int]] = field(default_factory=dict)
    #: Idle listener -> messages it was handed.
    idle: dict[str, int] = field(default_factory=dict)
    #: Notifiers that wait for the start.
    ready: set[int] = field(default_factory=set)
    #: Notifications on the ledger itself.
    entries: int = 0

    @property
    def total(self) -> int:
        """All that was committed so far."""
        return sum(account.committed for account in self.notifiers.values())

    @property
    def all_done(self) -> bool:
        """Every notifier has committed its quota."""
        return all(account.done for account in self.notifiers.values())

    def take(self, message: pynotify.Notify) -> None:
        """Enter a message of the channel.  Raises GarbledEntryError."""
        self.entries += 1
        try:
            self._take(message)
        except (ValueError, LookupError) as error:
            raise GarbledEntryError(f"the ledger was handed {message.data!r}") from error

    def _take(self, message: pynotify.Notify) -> None:
        kind, *words = message.payload.split()
        if kind == "sent":
            self._take_entry(message.seq, Entry.decode(words))
        elif kind == "listening":
            self.listening[words[0]] = message.seq
        elif kind == "heard":
            counts = enumerate(map(int, words[1].split(",")))
            self.heard[words[0]] = Counter({channel: count for channel, count in counts if count})
        elif kind == "idle":
            self.idle[words[0]] = int(words[1])
        elif kind == "ready":
            self.ready.add(int(words[0]))
        elif kind == "done":
            self.notifiers[int(words[0])].done = True
        else:
            raise ValueError(kind)

    def _take_entry(self, seq: int, entry: Entry) -> None:
        account = self.notifiers[entry.notifier]
        account.last_number = entry.number
        account.transactions += 1
        account.committed += entry.counts.total()
        account.collapsed += entry.collapsed
        account.rolled_back += entry.rolled_back
        self.committed.update(entry.counts)
        self.commits.append((seq, entry.counts))

    def owed_to(self, process: str, channels: list[int]) -> Counter[int]:
        """What was committed on these channels after the LISTEN of that process."""
        since = self.listening[process]
        wanted = set(channels)
        owed: Counter[int] = Counter()
        for seq, counts in self.commits:
            if seq > since:
                for channel, count in counts.items():
                    if channel in wanted:
                        owed[channel] += count
        return owed
