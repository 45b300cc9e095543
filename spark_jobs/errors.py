"""What a job raises when it could not run; the command line prints it as one line."""

from __future__ import annotations


class NoLogsError(Exception):
    """There is nothing to read; says where was looked."""


class CannotRunError(Exception):
    """A job could not be run; says why."""
