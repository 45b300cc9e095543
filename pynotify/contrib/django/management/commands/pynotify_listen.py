"""`manage.py pynotify_listen CHANNEL...`: a function is called for each notification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import close_old_connections
from django.utils.module_loading import import_string

from pynotify._connect import connect
from pynotify._types import Gap, Notify

if TYPE_CHECKING:
    from collections.abc import Callable


class Command(BaseCommand):  # type: ignore[misc]
    """Listens until it is interrupted, or has had `--count` notifications."""

    help = "Listen to channels, and print what comes or call a function for it."

    def add_arguments(self, parser: Any) -> None:
        """The command's arguments."""
        parser.add_argument("channels", nargs="+", metavar="CHANNEL")
        parser.add_argument("--segment", help="default: the setting PYNOTIFY_SEGMENT")
        parser.add_argument(
            "--handler",
            metavar="MODULE.FUNCTION",
            help="called with each pynotify.Notify, or pynotify.Gap where some were lost",
        )
        parser.add_argument("--count", type=int, help="end after that many")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Listen."""
        handler: Callable[[Notify | Gap], object] = self._show
        if options["handler"]:
            try:
                handler = import_string(options["handler"])
            except ImportError as error:
                raise CommandError(str(error)) from error
        segment = options["segment"] or getattr(settings, "PYNOTIFY_SEGMENT", "default")
        with connect(segment, **getattr(settings, "PYNOTIFY_OPTIONS", {})) as conn:
            conn.listen(*options["channels"])
            for message in conn.notifies(stop_after=options["count"]):
                close_old_connections()  # as at the beginning and the end of a request
                try:
                    handler(message)
                except Exception as error:
                    self.stderr.write(f"{options['handler']} raised {error!r} for {message!r}")
                close_old_connections()

    def _show(self, message: Notify | Gap) -> None:
        if isinstance(message, Gap):
            self.stderr.write(f"messages were lost ({message.reason})")
        else:
            self.stdout.write(f"{message.channel}: {message.payload}")
        self.stdout.flush()
