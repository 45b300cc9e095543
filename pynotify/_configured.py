"""Options of a segment that stand outside of the program: in the environment, and in a file.

An argument of a call comes before the environment, and the environment before the file.
"""

from __future__ import annotations

import os

from pynotify._options import COUNTS, OPTIONS, SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_FILE = "PYNOTIFY_CONFIG"
#: Variables of another meaning; a segment of such a name has its options in the file alone.
_TAKEN = {
    _FILE,
    *(f"PYNOTIFY_{name}" for name in ("CRASHPOINTS", "REQUIRE", "SANITIZE", "TIME_FACTOR")),
}
_SIZE = r"([0-9][0-9_]*) ?(KiB|MiB|GiB|)"
_UNITS = {"": 0, "KiB": 10, "MiB": 20, "GiB": 30}


def parse_option(name: str, text: str) -> Any:
    """An option's value as people write it: "1MiB", "5.0", "block".  Raises ValueError."""
    if name not in OPTIONS:
        import difflib  # noqa: PLC0415, only a typo needs it

        near = difflib.get_close_matches(name, OPTIONS, 1) or sorted(OPTIONS)
        raise ValueError(f"there is no option {name!r}: {' or '.join(near)}?")
    if name in COUNTS:
        import re  # noqa: PLC0415, few have options outside of the program

        found = re.fullmatch(_SIZE, text)
        if found is None:
            raise ValueError(f"{name} must be a whole number, with KiB, MiB or GiB, not {text!r}")
        return int(found[1]) << _UNITS[found[2]]
    if name in SECONDS:
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"{name} must be seconds, not {text!r}") from None
    return text if text or name != "data_dir" else None


def variable(segment: str) -> str:
    """The name of a segment's variable: PYNOTIFY_ and the name in capitals, _ for . and -."""
    return "PYNOTIFY_" + segment.replace(".", "_").replace("-", "_").upper()


def configured(segment: str) -> Mapping[str, tuple[Any, str]]:
    """A segment's options: the value, and where it is from.  Raises ValueError, OSError."""
    return {**_of_file(segment), **_of_environment(segment)}


def _of_environment(segment: str) -> dict[str, tuple[Any, str]]:
    origin = variable(segment)
    text = "" if origin in _TAKEN else os.environ.get(origin, "")
    options = {}
    for word in filter(None, map(str.strip, text.split(","))):
        name, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f'{origin}: write "option=value,option=value", not {word!r}')
        options[name.strip()] = (_parsed(origin, name.strip(), value.strip()), origin)
    return options


def _of_file(segment: str) -> dict[str, tuple[Any, str]]:
    given = os.environ.get(_FILE)
    if not given:
        return {}
    import tomllib  # noqa: PLC0415, few need it

    try:
        with open(given, "rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} ({_FILE})", given) from error
    except ValueError as error:
        raise ValueError(f"{_FILE}={given}: {error}") from error
    ours = document.get("tool", {}).get("pynotify", {})
    misplaced = [name for name, value in ours.items() if not isinstance(value, dict)]
    if misplaced:
        raise ValueError(
            f"{given}, [tool.pynotify]: {misplaced[0]} belongs into a segment's table, "
            f"[tool.pynotify.{segment}]"
        )
    table = ours.get(segment, {})
    origin = f"{given}, [tool.pynotify.{segment}]"
    options = {}
    for name, value in table.items():
        if isinstance(value, str) or name not in OPTIONS:
            value = _parsed(origin, name, str(value))  # noqa: PLW2901
        if name == "data_dir" and isinstance(value, str):
            value = os.path.join(os.path.dirname(given), value)  # noqa: PLW2901
        options[name] = (value, origin)
    return options


def _parsed(origin: str, name: str, text: str) -> Any:
    try:
        return parse_option(name, text)
    except ValueError as error:
        raise ValueError(f"{origin}: {error}") from None
