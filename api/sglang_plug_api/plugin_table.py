"""What was found and declared, as plain data: shown by ``sglang-plug plugins`` and the route ``/plugins``."""

from __future__ import annotations

from typing import Any

from sglang_plug.discovery import Found
from sglang_plug.plugins import Component, Failure, Plugins


def plugin_table(plugins: Plugins) -> dict[str, list[dict[str, Any]]]:
    """``plugins``, ``components``, ``failures`` and ``blocked``, ready for JSON.

    A component's ``status`` is ``available``, ``unavailable``, ``clash`` (several declare the name) or ``unused``
    (``--prefer`` chose another one); ``reason`` says why it is not ``available``.
    """
    states = [
        *((one, "loaded") for one in plugins.loaded),
        *((failure.found, "failed") for failure in plugins.failures),
        *((one, "blocked") for one in plugins.blocked),
    ]
    hidden = [name for name in plugins.options.block if ":" in name]
    return {
        "plugins": [{**describe_plugin(found), "status": status} for found, status in states],
        "components": [describe_component(component, plugins) for component in plugins.all()],
        "failures": [describe_failure(failure) for failure in plugins.failures],
        "blocked": [*map(describe_plugin, plugins.blocked), *({"name": name} for name in hidden)],
    }


def slow_plugins(plugins: Plugins) -> list[str]:
    """A line on each plugin whose loading delays every command."""
    return [
        f"plugin {found.name!r} of {found.origin} computed for {seconds:.1f} s while it was loaded, which delays every "
        "command; its declaring module must only declare"
        for found, seconds in plugins.slow.items()
    ]


def describe_plugin(found: Found) -> dict[str, Any]:
    """Who ships a plugin, and its declaring module."""
    return {
        "name": found.name,
        "distribution": found.distribution,
        "version": found.version,
        "module": found.module,
        "file": found.file,
    }


def describe_failure(failure: Failure) -> dict[str, Any]:
    """A plugin that could not be loaded, and why."""
    return {**describe_plugin(failure.found), "error": failure.message}


def describe_component(component: Component, plugins: Plugins) -> dict[str, Any]:
    """One component, who declares it, and whether it can be used."""
    status, reason = availability(component, plugins)
    return {
        "kind": component.spec.kind,
        "name": component.spec.name,
        "plugin": component.found.name,
        "distribution": component.found.distribution,
        "version": component.found.version,
        "summary": component.spec.summary,
        "target": component.spec.target,
        "status": status,
        "reason": reason,
    }


def availability(component: Component, plugins: Plugins) -> tuple[str, str]:
    """The status of a component, see ``plugin_table``, and the reason."""
    spec = component.spec
    key = f"{spec.kind}:{spec.name}"
    others = [one for one in plugins.all(spec.kind) if one.spec.name == spec.name and one is not component]
    wanted = plugins.options.prefer.get(key)
    if others and wanted not in (None, component.found.distribution):
        return "unused", f"--prefer chose {wanted}"
    rivals = [one for one in others if wanted in (None, one.found.distribution)]
    if rivals:
        names = ", ".join(f"{one.found.origin} (plugin {one.found.name!r})" for one in rivals)
        return "clash", f"also declared by {names}; add --prefer {key}=DISTRIBUTION"
    if missing := component.unavailable():
        return "unavailable", missing
    return "available", ""
