"""Discovered plugins and declared components as plain data, for ``sglang-plug plugins`` and the route ``/plugins``."""

from __future__ import annotations

from typing import Any

from sglang_plug.plugins.choice import disagreement, other_choices
from sglang_plug.plugins.hookspecs import Facts
from sglang_plug.plugins.installed.discovery import DiscoveredPlugin
from sglang_plug.plugins.registry import Component, Failure, PluginError, Plugins


def plugin_table(plugins: Plugins) -> dict[str, list[dict[str, Any]]]:
    """Return ``plugins``, ``components``, ``failures``, ``blocked``, ``askers`` and ``disagreements``, ready for JSON.

    A component's ``status`` is ``available``, ``unavailable``, ``clash`` (several declare the name) or ``unused``
    (``--prefer`` chose another one); ``reason`` says why it is not ``available``.
    """
    states = [
        *((plugin, "loaded") for plugin in plugins.loaded),
        *((failure.plugin, "failed") for failure in plugins.failures),
        *((plugin, "blocked") for plugin in plugins.blocked),
    ]
    hidden = [name for name in plugins.options.block if ":" in name]
    return {
        "plugins": [{**describe_plugin(plugin), "status": status} for plugin, status in states],
        "components": [describe_component(component, plugins) for component in plugins.all()],
        "failures": [describe_failure(failure) for failure in plugins.failures],
        "blocked": [*map(describe_plugin, plugins.blocked), *({"name": name} for name in hidden)],
        "askers": [{"name": name} for name in plugins.choosing_plugins()],
        "disagreements": disagreements(plugins),
    }


def disagreements(plugins: Plugins) -> list[dict[str, str]]:
    """Describe the choices for ``auto`` that plugins disagree about, as far as they choose without knowing the model.

    Each has a ``kind`` and a ``reason``, which names the plugins.
    """
    rows = []
    for kind in plugins.kinds():
        try:
            choices = plugins.component_choices(kind, Facts())
        except PluginError:  # a start that needs the choice reports it
            continue
        if choices and (others := other_choices(choices)):
            rows.append({"kind": kind, "reason": disagreement(kind, choices[0], others)})
    return rows


def slow_plugins(plugins: Plugins) -> list[str]:
    """Return a line about each plugin whose loading delays every command."""
    return [
        f"plugin {plugin.name!r} of {plugin.origin} computed for {seconds:.1f} s while it was loaded, which delays "
        "every command; its declaring module must only declare"
        for plugin, seconds in plugins.slow.items()
    ]


def describe_plugin(plugin: DiscoveredPlugin) -> dict[str, Any]:
    """Describe a plugin: its distribution and its declaring module."""
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "module": plugin.module,
        "file": plugin.file,
    }


def describe_failure(failure: Failure) -> dict[str, Any]:
    """Describe a plugin that could not be loaded, with the error."""
    return {**describe_plugin(failure.plugin), "error": failure.message}


def describe_component(component: Component, plugins: Plugins) -> dict[str, Any]:
    """Describe a component: the plugin that declares it, and whether it can be used."""
    status, reason = availability(component, plugins)
    return {
        "kind": component.spec.kind,
        "name": component.spec.name,
        "plugin": component.plugin.name,
        "distribution": component.plugin.distribution,
        "version": component.plugin.version,
        "summary": component.spec.summary,
        "target": component.spec.target,
        "status": status,
        "reason": reason,
    }


def availability(component: Component, plugins: Plugins) -> tuple[str, str]:
    """Return the status of a component, see ``plugin_table``, and the reason."""
    spec = component.spec
    key = f"{spec.kind}:{spec.name}"
    others = [other for other in plugins.all(spec.kind) if other.spec.name == spec.name and other is not component]
    preferred = plugins.options.prefer.get(key)
    if others and preferred not in (None, component.plugin.distribution):
        return "unused", f"--prefer chose {preferred}"
    rivals = [other for other in others if preferred in (None, other.plugin.distribution)]
    if rivals:
        names = ", ".join(f"{rival.plugin.origin} (plugin {rival.plugin.name!r})" for rival in rivals)
        return "clash", f"also declared by {names}; add --prefer {key}=DISTRIBUTION"
    if missing := component.unavailable():
        return "unavailable", missing
    return "available", ""
