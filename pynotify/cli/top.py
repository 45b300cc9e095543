"""`pynotify top`: rates, the queue, and what holds it up, again and again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import termios
import time
import tty
from typing import TYPE_CHECKING, Any, NamedTuple

from pynotify._table import escape, pairs
from pynotify.cli import arguments
from pynotify.cli.backends import as_json, backend_table, of_database, queue_line
from pynotify.cli.channels import channel_table
from pynotify.cli.rates import Sample, channel_rates, pattern_rates, rates, take, topic_rates
from pynotify.cli.terminal import Watch, can_redraw, coloured, tidied_up
from pynotify.cli.topics.look import topic_table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from pynotify._types import BackendStat, EngineStat

_QUIT, _AGAIN, _NO_KEY = b"qQ\x03\x04", b" ", b"none"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _TO_END_OF_LINE, _TO_END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


#: SGR codes.  A queue that is half full is a problem to `pynotify doctor`, too.
_TITLE, _HEADING, _DIM, _BEHIND, _BAD = "1", "1;36", "2", "33", "1;31"
_HALF_FULL = 0.5


class _Line(NamedTuple):
    """One of the screen, and its colour."""

    text: str
    code: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    arguments.add_segment(parser)
    arguments.add_database_filter(parser)
    arguments.add_interval(parser, "seconds between two looks")
    times = parser.add_mutually_exclusive_group()
    times.add_argument("--count", type=arguments.count, metavar="N", help="print that many times")
    times.add_argument(
        "--once", dest="count", action="store_const", const=1, help="the same as --count 1"
    )
    arguments.add_json(parser, "an object a line")


def run(options: argparse.Namespace) -> int:
    """Watch until q, Ctrl-C, or the count."""
    before = _take(options)
    if before.error is not None:
        raise before.error  # a wrong name; one that vanishes later may come back
    if options.json or options.count is not None or not can_redraw():
        _print(options, before)
    else:
        with tidied_up(), _screen() as screen:
            _redraw(options, before, screen)
    return 0


def _print(options: argparse.Namespace, before: Sample) -> None:
    """One look after the other."""
    watch = Watch()
    printed = 0
    while options.count is None or printed < options.count:
        _sleep(watch, before.at + options.interval)
        now = _take(options)
        if options.json:
            arguments.print_json(_document(options.name, before, now), indent=None)
        else:
            lines = [line.text for line in _lines(options.name, before, now)]
            print(*([""] if printed else []), *lines, sep="\n")
            sys.stdout.flush()
        before = now
        printed += 1


def _sleep(watch: Watch, until: float) -> None:
    while (left := until - time.monotonic()) > 0:
        watch.wait(left)


def _redraw(options: argparse.Namespace, before: Sample, screen: _Screen) -> None:
    """Each look in the place of the one before, until q."""
    now = before
    while True:
        head, *rest = _lines(options.name, before, now)
        screen.draw([_Line(f"{head.text}  q quits, space looks again", head.code), *rest])
        before = now
        while (left := before.at + options.interval - time.monotonic()) > 0:
            key = screen.key_within(left)
            if key in _QUIT:
                return
            if key in _AGAIN:
                break
        now = _take(options)


def _lines(name: str, before: Sample, now: Sample) -> list[_Line]:
    head = _Line(f"{name}  {time.strftime('%H:%M:%S')}", _TITLE)
    if now.stat is None:
        return [
            head,
            _Line(""),
            *(_Line(escape(text), _BAD) for text in str(now.error).split("\n")),
        ]
    speed = {key: f"{value:,.0f}/s" for key, value in rates(before, now).items()}
    figures = pairs(
        [
            ("queue", queue_line(now.stat)),
            ("commits", f"{speed['commits']}, {speed['notifications']} notifications"),
            ("signals", f"{speed['signals_sent']} sent, {speed['signals_elided']} elided"),
            ("wake-ups", f"{speed['wakeups_useful']} useful, {speed['wakeups_useless']} useless"),
        ]
    )
    queue, *others = map(_Line, figures)
    lines = [head, _Line(""), queue._replace(code=_of_queue(now.stat)), *others]
    backends = _laggards_first(now.stat)
    lines += _table(backend_table(backends), [_of_backend(each, now.stat) for each in backends])
    if now.channels:
        lines += _table(channel_table(now.channels, channel_rates(before, now)))
    if now.patterns:
        lines += _table(channel_table(now.patterns, pattern_rates(before, now), "PATTERN"))
    if now.topics:
        lines += _table(topic_table(now.topics, topic_rates(before, now)))
    return lines


def _table(lines: Sequence[str], codes: Sequence[str] = ()) -> list[_Line]:
    """An empty line, the headings, and the rows in their colours."""
    rows = lines[1:]
    plain = [""] * (len(rows) - len(codes))
    return [_Line(""), _Line(lines[0], _HEADING), *map(_Line, rows, [*codes, *plain])]


def _of_queue(stat: EngineStat) -> str:
    if stat.queue_usage >= _HALF_FULL:
        return _BAD
    return _BEHIND if stat.tail_holder_pid is not None else ""


def _of_backend(backend: BackendStat, stat: EngineStat) -> str:
    if not backend.lag_bytes:
        return _DIM if backend.asleep else ""
    holds = backend.pid == stat.tail_holder_pid and stat.queue_usage >= _HALF_FULL
    return _BAD if holds else _BEHIND


def _take(options: argparse.Namespace) -> Sample:
    """The channels and topics of all databases, or of one."""
    sample = take(options.name, options.database)
    if sample.stat is None:
        return sample
    return sample._replace(stat=of_database(sample.stat, options.database))


def _laggards_first(stat: EngineStat) -> list[BackendStat]:
    return sorted(stat.backends, key=lambda backend: (-backend.lag_bytes, backend.backend_id))


def _document(name: str, before: Sample, now: Sample) -> dict[str, Any]:
    document: dict[str, Any] = {"name": name, "time": time.time()}
    if now.stat is None:
        return document | {"error": str(now.error)}
    seconds = now.at - before.at
    document |= {"seconds": seconds, "rates": rates(before, now)}
    return document | _with_rates(before, now)


def _with_rates(before: Sample, now: Sample) -> dict[str, Any]:
    """`rate` of a channel, pattern or topic is null when the look before did not see it."""
    assert now.stat is not None
    document = as_json(now.stat, now.topics, now.channels, now.patterns)
    of_all = {
        "listened_channels": channel_rates,
        "listened_patterns": pattern_rates,
        "topics": topic_rates,
    }
    for key, found in of_all.items():
        speed = found(before, now)
        for each in document[key]:
            each["rate"] = speed.get((each["database"], each["name"]))
    return document


class _Screen:
    """The whole terminal, and its keys when standard input is one as well."""

    def __init__(self) -> None:
        self._keyboard = sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else None
        self._modes: list[Any] | None = None
        self._watch = Watch(*([] if self._keyboard is None else [self._keyboard]))

    def enter(self) -> None:
        if self._keyboard is not None:
            self._modes = termios.tcgetattr(self._keyboard)
            tty.setcbreak(self._keyboard)
        self._write(_ENTER)

    def leave(self) -> None:
        # The terminal may be gone, which is why we leave.
        with contextlib.suppress(OSError):
            self._write(_LEAVE)
        if self._keyboard is not None and self._modes is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._modes)

    def pause(self, _number: int, _frame: FrameType | None) -> None:
        """Ctrl-Z: the shell gets its terminal back as it was."""
        self.leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.enter()

    def draw(self, lines: list[_Line]) -> None:
        """As many lines as there is room for, none wrapped."""
        columns, rows = shutil.get_terminal_size()
        if len(lines) > rows:
            lines = [*lines[: rows - 1], _Line(f"... {len(lines) - rows + 1} more", _DIM)]
        # Cut first: a colour takes no room, and has to end.
        cut = [coloured(line.text[:columns], line.code) for line in lines]
        text = "\n".join(line + _TO_END_OF_LINE for line in cut)
        self._write(_HOME + text + _TO_END_OF_SCREEN)

    def key_within(self, seconds: float) -> bytes:
        """The key that was typed, if it means something; waits no longer than that.

        One that ends comes before others.
        """
        ready = self._watch.wait(seconds)
        if self._keyboard is None or self._keyboard not in ready:
            return _NO_KEY
        keys = os.read(self._keyboard, 64)
        if not keys or any(key in _QUIT for key in keys):  # the terminal is closed, or one ends
            return _QUIT[:1]
        return _AGAIN if any(key in _AGAIN for key in keys) else _NO_KEY

    @staticmethod
    def _write(text: str) -> None:
        # Not through sys.stdout: pause() may have interrupted a write, and that is not reentrant.
        data = text.encode(sys.stdout.encoding, "backslashreplace")
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]


@contextlib.contextmanager
def _screen() -> Iterator[_Screen]:
    screen = _Screen()
    before = signal.signal(signal.SIGTSTP, screen.pause)
    try:
        screen.enter()
        yield screen
    finally:
        signal.signal(signal.SIGTSTP, before)
        screen.leave()
