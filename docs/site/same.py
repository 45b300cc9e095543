"""Methods that are another one by assignment (`notify = BaseConnection._notify`), for the pages."""

from __future__ import annotations

from typing import Any

import griffe


class Same(griffe.Extension):
    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for module in [pkg, *pkg.modules.values()]:
            for owner in module.classes.values():
                if not owner.is_alias:
                    self._resolve(owner)

    def _resolve(self, owner: griffe.Class | griffe.Alias) -> None:
        for name, attribute in list(owner.attributes.items()):
            value = None if attribute.is_alias else attribute.value
            if isinstance(value, griffe.ExprAttribute):
                try:
                    found = owner.modules_collection[value.canonical_path]
                except KeyError:
                    continue
                if found.is_function:
                    owner.set_member(name, griffe.Alias(name, found))
