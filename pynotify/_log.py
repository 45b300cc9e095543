"""The logger "pynotify", which imports logging when there is something to say.

logging is dearer to import than all that a short command needs of this package.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from typing import Any


class _Later:
    """Has the methods of the logger."""

    def __getattr__(self, name: str) -> Any:
        import logging  # noqa: PLC0415

        found = logging.getLogger("pynotify")
        # As psycopg: warnings are shown, the rest when the program asks for it.
        if found.level == logging.NOTSET:
            found.setLevel(logging.WARNING)
        return getattr(found, name)


logger: logging.Logger = _Later()  # type: ignore[assignment]
