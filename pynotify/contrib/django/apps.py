"""The application's configuration."""

from __future__ import annotations

from django.apps import AppConfig


class PynotifyConfig(AppConfig):  # type: ignore[misc]
    """`INSTALLED_APPS = [..., "pynotify.contrib.django"]`."""

    name = "pynotify.contrib.django"
    label = "pynotify"
    verbose_name = "pynotify"
