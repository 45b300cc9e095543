"""Plain calls are understood without argparse, and as argparse understands them."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import random
from collections.abc import Callable
from typing import Any

import pytest

from pynotify.cli import topics
from pynotify.cli.commands import COMMANDS
from pynotify.cli.plain import Parser

OTHERS = ("-", "", "x", "5", "1.5", "1h", "block", "bash", "a b", "100%", "-1", "-x", "--", "--bad")


def declarations() -> dict[str, Callable[[Any], None]]:
    found = {
        name: importlib.import_module(f"pynotify.cli.{name}").add_arguments
        for name in COMMANDS
        if name not in ("demo", "topics")  # they have parsers of their own
    }
    return found | {f"topics {name}": action.add_arguments for name, action in topics.actions()}


DECLARATIONS = declarations()


def of_argparse(declare: Callable[[Any], None], words: list[str]) -> dict[str, Any] | None:
    parser = argparse.ArgumentParser("p")
    declare(parser)
    parse = parser.parse_args if "--" in words else parser.parse_intermixed_args
    return outcome(lambda: parse(words))


def outcome(parse: Callable[[], Any]) -> dict[str, Any] | None:
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            return vars(parse())
        except SystemExit:
            return None


def is_plain(declare: Callable[[Any], None], words: list[str]) -> bool:
    parser = Parser("p", "s")
    declare(parser)
    outcome(lambda: parser.parse(words))
    return parser._made is None


def flags_of(declare: Callable[[Any], None]) -> list[str]:
    parser = argparse.ArgumentParser("p")
    declare(parser)
    return [flag for action in parser._actions for flag in action.option_strings]


@pytest.mark.parametrize("name", DECLARATIONS)
def test_the_same_comes_out(name: str) -> None:
    declare = DECLARATIONS[name]
    flags = flags_of(declare)
    choose = random.Random(name)
    plain = 0
    for _ in range(150):
        words = []
        for _ in range(choose.randrange(6)):
            flag = choose.choice(flags)
            other = choose.choice(OTHERS)
            words += choose.choice(
                [[flag], [flag, other], [other], [f"{flag}={other}"], [flag + other], [flag[:-1]]]
            )
        parser = Parser("p", "s")
        declare(parser)
        found = outcome(lambda: parser.parse(words))  # noqa: B023
        assert found == of_argparse(declare, words), words
        plain += parser._made is None and found is not None
    assert plain or not can_be_plain(declare)


def can_be_plain(declare: Callable[[Any], None]) -> bool:
    """argparse has no more to do than to declare: no groups, no two positional arguments."""
    parser = Parser("p", "s")
    declare(parser)
    declared = parser._declared
    return (
        parser._made is None
        and all(each.is_plain for each in declared)
        and sum(not each.is_option for each in declared) < 2
        and not any(each.choices for each in declared)  # which random words do not meet
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ls", []),
        ("ls", ["--json"]),
        ("notify", ["c"]),
        ("notify", ["c", "payload", "-n", "app", "--database", "d"]),
        ("notify", ["--name", "app", "c", "-"]),
        ("stat", ["app", "--json"]),
        ("listen", ["a", "b", "-n", "app", "--count", "3", "--pattern", "x*"]),
        ("rm", ["a", "b", "--force"]),
        ("rm", ["--unused", "--older", "1h"]),
    ],
)
def test_plain_calls(name: str, words: list[str]) -> None:
    assert is_plain(DECLARATIONS[name], words)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ls", ["--jso"]),
        ("ls", ["--help"]),
        ("notify", []),
        ("notify", ["c", "--name=app"]),
        ("notify", ["c", "-napp"]),
        ("notify", ["c", "--", "-payload"]),
        ("notify", ["c", "-n", "-app"]),
        ("listen", ["a", "--count", "none"]),
    ],
)
def test_what_argparse_has_to_look_at(name: str, words: list[str]) -> None:
    assert not is_plain(DECLARATIONS[name], words)
