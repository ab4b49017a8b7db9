"""Asking the plugins which component to use where the user said ``auto``."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pluggy

from sglang_plug.config import PluginError
from sglang_plug.plugins.installed.discovery import DISTRIBUTION, DiscoveredPlugin

from .hookspecs import Facts

logger = logging.getLogger(__name__)

FLAGS: Mapping[str, str] = {
    "checkpoint": "--checkpoint-format",
    "weights": "--load-format",
    "tokenizer": "--tokenizer-mode",
}
"""Kind of components that recognise what they read -> the flag that names one."""
OWN = f"{DISTRIBUTION}:"
"""Begins the names of sglang-plug's own plugins."""


@dataclass(frozen=True, slots=True)
class ComponentChoice:
    """The component that one plugin chose."""

    name: str
    plugin: str
    """The plugin, as ``distribution:plugin``."""


def call_order(calls: Sequence[pluggy.HookImpl], loaded: Sequence[DiscoveredPlugin]) -> list[pluggy.HookImpl]:
    """Sort implementations of ``choose_component`` into the order in which they are called.

    Files and folders that the user named come first, the last named one before the others; then installed
    distributions by name; then sglang-plug itself. ``tryfirst`` and ``trylast`` come before and after all others.
    """
    order = {f"{plugin.distribution}:{plugin.name}": _load_order(index, plugin) for index, plugin in enumerate(loaded)}
    last = (3, 0)
    return sorted(
        calls, key=lambda call: (not call.opts["tryfirst"], call.opts["trylast"], order.get(call.plugin_name, last))
    )


def component_choices(calls: Sequence[pluggy.HookImpl], kind: str, facts: Facts) -> Iterator[ComponentChoice]:
    """Call each of ``calls`` and yield the choices; those of sglang-plug only if no other plugin chooses.

    Raises ``PluginError`` for one that fails or returns no name. After the first choice that is only logged.
    """
    is_chosen = False
    for call in calls:
        if is_chosen and call.plugin_name.startswith(OWN):
            continue
        try:
            name = _call_hook(call, kind, facts)
        except PluginError as error:
            if not is_chosen:
                raise
            logger.warning("%s", error)
            continue
        if name is not None:
            is_chosen = True
            yield ComponentChoice(name, call.plugin_name)


def _call_hook(call: pluggy.HookImpl, kind: str, facts: Facts) -> str | None:
    arguments = {"kind": kind, "facts": facts}
    try:
        name: Any = call.function(*(arguments[argument] for argument in call.argnames))
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"plugin {call.plugin_name!r} failed to choose a {kind}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(name, str | None):
        raise PluginError(
            f"plugin {call.plugin_name!r} chose {name!r} as {kind}; choose_component returns a name or None"
        )
    return name


def other_choices(choices: Sequence[ComponentChoice]) -> list[ComponentChoice]:
    """Return the choices that differ from the first, which is used."""
    return [choice for choice in choices[1:] if choice.name != choices[0].name]


def disagreement(kind: str, chosen: ComponentChoice, others: Sequence[ComponentChoice]) -> str:
    """Describe a choice that plugins disagree about, and what to do."""
    alternatives = " and ".join(f"{choice.plugin} would choose {choice.name!r}" for choice in others)
    return (
        f"plugins disagree about the {kind} for 'auto': {chosen.plugin} is called first and chooses {chosen.name!r}, "
        f"{alternatives}; name one to settle it"
    )


def _load_order(index: int, plugin: DiscoveredPlugin) -> tuple[int, int]:
    if plugin.explicit:
        return 0, -index
    return (2, index) if plugin.distribution == DISTRIBUTION else (1, index)
