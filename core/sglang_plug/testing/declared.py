"""The component that a conformance test is given: by its name, or as a function that makes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from sglang_plug.plugins.attribution import make_with_settings
from sglang_plug.plugins.registry import Plugins

T = TypeVar("T")


def factory_of(
    kind: str, component: str | Callable[[], T], *, base: type | None = None, contract: type | None = None
) -> Callable[[], T]:
    """Return ``component``, or a function that makes the installed component of that name with its settings.

    ``base`` and ``contract`` are those of ``make_with_settings``. Raises ``PluginError`` if no plugin, or more than
    one, declares the name.
    """
    if not isinstance(component, str):
        return component
    return partial(make_with_settings, Plugins.discover().get(kind, component), base=base, contract=contract)
