"""GW-LEX: what is LISTEN, NOTIFY and UNLISTEN, and of which name and text, against PostgreSQL's own
parser (pglast, which is libpg_query).

Texts are put together from what PostgreSQL's lexer knows, and then damaged: a character is taken
out, put in or replaced.  Whatever that parser refuses has to be refused, and whatever it takes has
to be taken, with the channel and payload that it says.
"""

from __future__ import annotations

import string

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.conftest import NewGateway
from gateway.wire import Client
from requirement import require

try:
    from pglast import parse_sql
    from pglast.ast import ListenStmt, NotifyStmt, UnlistenStmt
    from pglast.parser import ParseError
except ImportError as missing:
    require("pglast", str(missing))

Said = tuple[str, str | None, str | None]

LETTERS = st.sampled_from("abzABZ_éßÄ漢")
#: Also what has a meaning inside of some kind of quotes, and in none of another.
CHARACTERS = st.sampled_from([*list("ab Z09'\"\\$-/*;,()xuU&+\t\n\réx€"), "''", '""', "\\'", "$$"])
TEXTS = st.lists(CHARACTERS, max_size=8).map("".join)
HEX = st.text("0123456789abcdefABCDEF", min_size=4, max_size=4)


def doubled(text: str, quote: str) -> str:
    return quote + text.replace(quote, quote + quote) + quote


ESCAPES = st.one_of(
    st.sampled_from([r"\b", r"\f", r"\n", r"\r", r"\t", r"\q", r"\\", r"\'", "''", "a", " ", "é"]),
    st.text("01234567", min_size=1, max_size=3).map(lambda digits: "\\" + digits),
    st.text(string.hexdigits, min_size=1, max_size=2).map(lambda digits: "\\x" + digits),
    HEX.map(lambda digits: "\\u" + digits),
    HEX.map(lambda digits: "\\U0000" + digits),
)
UNICODE = st.lists(
    st.one_of(
        HEX.map(lambda digits: "\\" + digits), st.sampled_from(["a", " ", r"\\", r"\+01F600"])
    ),
    max_size=4,
).map("".join)
UESCAPE = st.sampled_from(
    ["", "", " UESCAPE '!'", " uescape '\\'", " UESCAPE '+'", " UESCAPE 'ab'"]
)
TAGS = st.sampled_from(["", "a", "_b1", "é", "A"])

IDENTIFIERS = st.one_of(
    st.builds(lambda first, rest: first + rest, LETTERS, st.text("abZ09_$é", max_size=70)),
    TEXTS.map(lambda text: doubled(text, '"')),
    st.builds(lambda text, escape: f'U&"{text}"{escape}', UNICODE, UESCAPE),
    st.sampled_from(["select", "table", "listen", "user", "int", "between", "all", "*", "a.b", ""]),
)
STRINGS = st.one_of(
    TEXTS.map(lambda text: doubled(text, "'")),
    st.lists(ESCAPES, max_size=5).map(lambda parts: "E'" + "".join(parts) + "'"),
    st.builds(lambda text, escape: f"U&'{text}'{escape}", UNICODE, UESCAPE),
    st.builds(lambda tag, text: f"${tag}${text}${tag}$", TAGS, TEXTS),
    st.sampled_from(["B'01'", "X'1F'", "N'n'", "1", "$1", "null", "'a' || 'b'", "a", ""]),
)
SPACES = st.lists(
    st.sampled_from([" ", "\n", "\t", "\f", "\v", "-- x\n", "--\r", "/* x */", "/*/**/*/", "/* '"]),
    min_size=1,
    max_size=2,
).map("".join)
#: 'a' and 'b' on two lines are one text.
CONTINUED = st.one_of(
    STRINGS,
    st.builds(lambda a, between, b: f"{a}{between}{b}", STRINGS, SPACES, STRINGS),
)
STATEMENTS = st.one_of(
    st.builds(lambda a, b, c: f"LISTEN{a}{b}{c}", SPACES, IDENTIFIERS, SPACES),
    st.builds(lambda a, b, c: f"uNlisten{a}{b}{c}", SPACES, IDENTIFIERS, SPACES),
    st.builds(lambda a, b, c: f"Notify{a}{b}{c}", SPACES, IDENTIFIERS, SPACES),
    st.builds(lambda a, b, c, d: f"NOTIFY{a}{b}{c},{d}", SPACES, IDENTIFIERS, SPACES, CONTINUED),
)
SCRIPTS = st.lists(STATEMENTS, min_size=1, max_size=2).map(";".join)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    text = draw(SCRIPTS)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(["", *"'\"\\;$-/*,aE&U \n"])) + text[at + 1 :]
    return text


def parsed(sql: str) -> list[Said] | None:
    """None: it is refused.  Raises LookupError when there is something else among it."""
    try:
        statements = [raw.stmt for raw in parse_sql(sql)]
    except ParseError:
        return None
    found: list[Said] = []
    for each in statements:
        if isinstance(each, ListenStmt):
            found.append(("LISTEN", each.conditionname, None))
        elif isinstance(each, UnlistenStmt):
            found.append(("UNLISTEN", each.conditionname, None))
        elif isinstance(each, NotifyStmt):
            found.append(("NOTIFY", each.conditionname, each.payload or ""))
        else:
            raise LookupError(sql)
    return found


def expected_of(said: list[Said]) -> tuple[list[str], list[tuple[str, str]]]:
    """What is listened to afterwards, by a client that listened to nothing; and what it hears."""
    listening: list[str] = []
    for kind, channel, _payload in said:
        if kind == "LISTEN" and channel is not None and channel not in listening:
            listening.append(channel)
        elif kind == "UNLISTEN":
            listening = [name for name in listening if channel is not None and name != channel]
    sent = [(channel, payload) for kind, channel, payload in said if kind == "NOTIFY"]
    heard = [(c or "", p or "") for c, p in dict.fromkeys(sent) if c in listening]
    return sorted(listening), heard


def play(client: Client, sql: str) -> tuple[list[str], list[tuple[str, str]]] | None:
    """The same of the gateway; None when it refused."""
    answers = client.ask(sql)
    channels = client.ask("SELECT pg_listening_channels()")
    listening = [answer[1][0].decode() for answer in channels if answer[0] == "D"]
    client.ask("UNLISTEN *")
    if any(answer[0] == "E" for answer in answers):
        assert not listening, "a script is one transaction"
        return None
    heard = [answer[2:] for answer in answers if answer[0] == "A"]
    return sorted(listening), heard


@pytest.mark.parametrize("examples", [300, pytest.param(20_000, marks=pytest.mark.full)])
def test_as_postgresql_s_parser(new_gateway: NewGateway, examples: int) -> None:
    gateway = new_gateway()

    with gateway.client() as client:

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @example("NOTIFY a, 'x' -- c\n 'y'")
        @example("LISTEN " + "é" * 40)
        @example("NOTIFY a, $x$ $X$ $x$")
        @example("NOTIFY a, U&'!0041' UESCAPE '!'\n''")
        @example("NOTIFY a, U&'!0041' UESCAPE ''\n'!'\n''")
        @example("NOTIFY a, U&'!0041' UESCAPE '!'\n'!'")
        @example("NOTIFY a, U&'!0041' UESCAPE '!' ''")
        @example("NOTIFY a, U&'!0041' UESCAPE ''")
        @example("NOTIFY a, U&'!0041' UESCAPE ''''")
        @example("LISTEN A*0é")
        @given(damaged())
        def same(sql: str) -> None:
            try:
                said = parsed(sql)
            except LookupError:
                return
            assert play(client, sql) == (None if said is None else expected_of(said))

        same()
