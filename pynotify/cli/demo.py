"""`pynotify demo`: runs pynotify.demo, which has its own arguments and exit status."""

from __future__ import annotations

import importlib


def run(words: list[str]) -> int:
    """Run it; 2 means that a guarantee was broken."""
    return int(importlib.import_module("pynotify.demo.cli").main(words))
