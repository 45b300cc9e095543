"""The version, which stands in the metadata of the installation alone."""

from __future__ import annotations

import os

_BEGIN, _END = "pynotify_ipc-", ".dist-info"


def version() -> str:
    """What the name of the directory of the metadata says, where there is one such beside us.

    importlib.metadata is right everywhere, and dearer to import than all that the command line
    needs for a short command.
    """
    place = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = [name for name in os.listdir(place) if name.startswith(_BEGIN) and name.endswith(_END)]
    if len(found) == 1:
        return found[0].removeprefix(_BEGIN).removesuffix(_END)
    from importlib.metadata import version as of_metadata  # noqa: PLC0415

    return of_metadata("pynotify-ipc")
