"""Arguments of a plain call, understood without argparse, which is dearer than most commands.

A command declares its arguments as for argparse.  A call is plain when each option is written in
full, with its value as a word of its own that begins with no dash.  Whatever else is asked, and all
that is wrong, goes to argparse with the same declarations: so there is one place that says what
wrong usage is, and one text of help.
"""

from __future__ import annotations

from types import SimpleNamespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any, NoReturn

_ACTIONS = ("store", "store_true", "append")
_KNOWN = frozenset(
    {"action", "choices", "default", "dest", "help", "metavar", "nargs", "required", "type"}
)


class _NotPlain(Exception):
    """argparse has to look at it."""


class _Argument:
    """One declaration, as far as a plain call needs it."""

    def __init__(self, flags: tuple[str, ...], how: dict[str, Any]) -> None:
        self.is_option = flags[0].startswith("-")
        self.flags = flags if self.is_option else ()
        long = [flag for flag in flags if flag.startswith("--")] or list(flags)
        self.name: str = how.get("dest") or long[0].lstrip("-").replace("-", "_")
        self.action: str = how.get("action", "store")
        self.nargs = how.get("nargs")
        self.convert = how.get("type")
        self.choices = how.get("choices")
        self.required: bool = how.get("required", False)
        self.default = how.get("default", False if self.action == "store_true" else None)
        self.is_plain = (
            self.action in _ACTIONS
            and not how.keys() - _KNOWN
            and self.nargs in ((None,) if self.is_option else (None, "?", "*", "+"))
        )

    def value(self, word: str) -> Any:
        """What a word says."""
        try:
            value = word if self.convert is None else self.convert(word)
        except Exception:
            raise _NotPlain from None
        if self.choices is not None and value not in self.choices:
            raise _NotPlain
        return value

    def initial(self) -> Any:
        """The value when it is not given; argparse converts a default that is text."""
        if isinstance(self.default, str) and self.convert is not None:
            return self.convert(self.default)
        return self.default


class Parser:
    """Stands in for an ArgumentParser of argparse, until one is needed."""

    def __init__(self, prog: str, summary: str) -> None:
        self._prog = prog
        self._summary = summary
        self._declared: list[_Argument] = []
        self._calls: list[tuple[tuple[str, ...], dict[str, Any]]] = []
        self._made: argparse.ArgumentParser | None = None

    def add_argument(self, *flags: str, **how: Any) -> None:
        """Declare an argument in the terms of argparse."""
        if self._made is not None:
            self._made.add_argument(*flags, **how)
            return
        self._calls.append((flags, how))
        self._declared.append(_Argument(flags, how))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.full(), name)

    def error(self, message: str) -> NoReturn:
        """Usage and the message, and exit status 2."""
        self.full().error(message)

    def full(self) -> argparse.ArgumentParser:
        """The parser of argparse; what is declared from here on is declared there alone."""
        if self._made is None:
            import argparse  # noqa: PLC0415

            self._made = argparse.ArgumentParser(self._prog, description=self._summary)
            for flags, how in self._calls:
                self._made.add_argument(*flags, **how)
        return self._made

    def parse(self, words: Sequence[str]) -> Any:
        """Options may stand between the other arguments: `notify CHANNEL --name app PAYLOAD`."""
        if self._made is None:
            try:
                return self._plainly(words)
            except _NotPlain:
                pass
        full = self.full()
        # Intermixed parsing forgets what a leading "--" meant.
        return full.parse_args(words) if "--" in words else full.parse_intermixed_args(words)

    def _plainly(self, words: Sequence[str]) -> SimpleNamespace:
        positional = [each for each in self._declared if not each.is_option]
        if len(positional) > 1 or not all(each.is_plain for each in self._declared):
            raise _NotPlain
        options = {flag: each for each in self._declared for flag in each.flags}
        found: dict[str, Any] = {}
        others: list[str] = []
        rest = iter(words)
        for word in rest:
            if _is_value(word):
                others.append(word)
                continue
            each = options.get(word)
            if each is None:
                raise _NotPlain
            if each.action == "store_true":
                found[each.name] = True
                continue
            following = next(rest, "-?")
            if not _is_value(following):
                raise _NotPlain
            value = each.value(following)
            if each.action == "append":
                value = [*found.get(each.name, each.default or ()), value]
            found[each.name] = value
        if any(each.required and each.name not in found for each in self._declared):
            raise _NotPlain
        for each in positional:
            found[each.name] = _positional(each, others)
        if others and not positional:
            raise _NotPlain
        for each in self._declared:
            if each.name not in found:
                found[each.name] = each.initial()
        return SimpleNamespace(**found)


def _is_value(word: str) -> bool:
    return word == "-" or not word.startswith("-")


def _positional(each: _Argument, words: list[str]) -> Any:
    if each.nargs in ("*", "+"):
        if not words and (each.nargs == "+" or each.default is not None):
            raise _NotPlain
        return [each.value(word) for word in words]
    if len(words) > 1 or (not words and each.nargs is None):
        raise _NotPlain
    return each.value(words[0]) if words else each.initial()
