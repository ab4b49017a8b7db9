"""``sglang-plug plugins``: installed plugins, their state, and remedies for problems."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from sglang_plug import ConfigError, PluginError, Plugins, StepExtensionSpec
from sglang_plug.plugins.declaration import hook_names
from sglang_plug.plugins.extension_order import declared_names, unknown_names, usable_extensions
from sglang_plug.plugins.installed.discovery import DISTRIBUTION, GROUP, DiscoveredPlugin
from sglang_plug.plugins.registry import Component, Failure
from sglang_plug_api.lifecycle.declaration_costs import declaration_costs
from sglang_plug_api.lifecycle.plugin_check import check_component, settings_of
from sglang_plug_api.lifecycle.plugin_table import availability, disagreements, plugin_table, slow_plugins

from .plugin_diff import add_diff_action
from .plugin_freeze import add_freeze_action
from .plugin_new import add_new_action
from .plugin_search import add_search_action
from .plugin_tests import add_test_action
from .version import versions

MAX_NAMES, FEW_NAMES = 30, 5
"""Known names that a message lists in full, and the nearest ones that it names if there are more."""
RED, PLAIN = "\x1b[31m", "\x1b[0m"


class PluginsCommand:
    """The command with its actions ``list``, ``show``, ``check``, ``test``, ``new``, ``freeze``, ``diff``, ``search``
    and ``doctor``."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Add one subparser for each action."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        listing = actions.add_parser("list", help="all components, and the plugins that declare them")
        listing.add_argument("--json", action="store_true", help="print JSON")
        listing.add_argument("--kind", help=f"only this kind: {', '.join(plugins.kinds())}")
        listing.set_defaults(act=_list)
        show = actions.add_parser("show", help="one plugin or component in full")
        show.add_argument("key", metavar="KEY", help="a plugin, a distribution, kind:name or name")
        show.set_defaults(act=_show)
        check = actions.add_parser("check", help="load everything a plugin declares; status 1 on a problem")
        check.add_argument("name", metavar="NAME", help="a plugin or a distribution")
        check.set_defaults(act=_check)
        add_test_action(actions)
        add_new_action(actions)
        add_freeze_action(actions)
        add_diff_action(actions)
        add_search_action(actions)
        doctor = actions.add_parser("doctor", help="check the whole installation; status 1 if something is broken")
        doctor.set_defaults(act=_doctor)

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Run the chosen action; return its exit status."""
        return int(options.act(options, plugins))


def _list(options: argparse.Namespace, plugins: Plugins) -> int:
    if options.kind is not None and options.kind not in plugins.kinds():
        raise PluginError(_unknown("kind", options.kind, plugins.kinds()))
    table = plugin_table(plugins)
    table["components"] = [row for row in table["components"] if options.kind in (None, row["kind"])]
    if options.json:
        print(json.dumps(table, indent=2))
        return 0
    rows = [
        (
            row["kind"],
            row["name"],
            row["plugin"],
            f"{row['distribution']} {row['version']}",
            f"{row['status']}: {row['reason']}" if row["reason"] else row["status"],
        )
        for row in table["components"]
    ]
    _print_columns([("KIND", "NAME", "PLUGIN", "DISTRIBUTION", "STATUS"), *rows])
    for row in table["blocked"]:
        print(f"blocked: {row['name']}" + (f" ({row['distribution']})" if "distribution" in row else ""))
    if options.kind == StepExtensionSpec.kind:
        print(f"called in this order: {', '.join(_extension_order(plugins))}")
    third_party = [row["name"] for row in table["askers"] if not row["name"].startswith(f"{DISTRIBUTION}:")]
    if third_party:
        print(f"may choose components for 'auto', in this order: {', '.join(third_party)}")
    for row in table["disagreements"]:
        print(_red(row["reason"]))
    for failure in plugins.failures:
        print(_red(str(failure)))
    return 0


def _show(options: argparse.Namespace, plugins: Plugins) -> int:
    key: str = options.key
    loaded = [plugin for plugin in plugins.loaded if key in (plugin.name, plugin.distribution)]
    failures = [failure for failure in plugins.failures if key in (failure.plugin.name, failure.plugin.distribution)]
    components = [item for item in plugins.all() if key in (item.spec.name, f"{item.spec.kind}:{item.spec.name}")]
    if not loaded and not failures and not components:
        raise PluginError(_unknown("plugin or component", key, _every_key(plugins)))
    for plugin in loaded:
        _show_plugin(plugin, plugins)
    for failure in failures:
        _show_failure(failure)
    for component in components:
        _show_component(component, plugins)
    return 0


def _show_plugin(plugin: DiscoveredPlugin, plugins: Plugins) -> None:
    declared = [f"{item.spec.kind}:{item.spec.name}" for item in plugins.all() if item.plugin == plugin]
    _print_fields(
        f"plugin {plugin.name}",
        {
            "distribution": plugin.origin,
            "module": plugin.module,
            "file": getattr(sys.modules.get(plugin.module), "__file__", None) or "unknown",
            "declares": ", ".join(declared) or "nothing",
        },
    )


def _show_failure(failure: Failure) -> None:
    plugin = failure.plugin
    fields = {
        "distribution": plugin.origin,
        "module": plugin.module,
        "file": plugin.file or "",
        "failed": failure.message,
    }
    _print_fields(f"plugin {plugin.name}", fields)
    print(_red(failure.trace))


def _show_component(component: Component, plugins: Plugins) -> None:
    spec, plugin = component.spec, component.plugin
    status, reason = availability(component, plugins)
    fields: dict[str, Any] = {
        "plugin": f"{plugin.name} of {plugin.origin}",
        "declared in": getattr(sys.modules.get(plugin.module), "__file__", None) or plugin.module,
        "status": f"{status}: {reason}" if reason else status,
    }
    for item in dataclasses.fields(spec):
        fields[item.name] = _text(getattr(spec, item.name))
    if isinstance(spec, StepExtensionSpec):
        order = _extension_order(plugins)
        fields["order"] = "\n".join(f"[{name}]" if name == spec.name else name for name in order)
    _print_fields(f"{spec.kind}:{spec.name}", fields)
    try:
        for name, kind, default in settings_of(component):
            print(f"  --set {spec.name}.{name}={kind}" + (f" (default {default})" if default else " (required)"))
    except Exception as error:  # a plugin's own code is imported here
        print(_red(f"  settings cannot be imported: {type(error).__name__}: {error}"))


def _extension_order(plugins: Plugins) -> list[str]:
    """Return the names of the step extensions that can be used here, in the order in which they are called."""
    try:
        return [item.spec.name for item in usable_extensions(plugins)]
    except ConfigError as error:
        return [str(error)]


def _check(options: argparse.Namespace, plugins: Plugins) -> int:
    name: str = options.name
    every = [*plugins.loaded, *(failure.plugin for failure in plugins.failures), *plugins.blocked]
    chosen = [plugin for plugin in every if name in (plugin.name, plugin.distribution)]
    if not chosen:
        known = {plugin.name for plugin in every} | {plugin.distribution for plugin in every}
        raise PluginError(_unknown("plugin", name, known))
    problems = [str(failure) for failure in plugins.failures if failure.plugin in chosen]
    problems += [
        f"plugin {item.name!r} is blocked, so it was not checked" for item in chosen if item in plugins.blocked
    ]
    problems += [
        f"plugin {item.name!r} of {item.origin} implements no hook" for item in chosen if _is_empty(item, plugins)
    ]
    problems += _costly(plugin for plugin in chosen if plugin in plugins.loaded)
    problems += [line for line in slow_plugins(plugins) if any(repr(plugin.name) in line for plugin in chosen)]
    names = {f"{plugin.distribution}:{plugin.name}" for plugin in chosen}
    problems += [row["reason"] for row in disagreements(plugins) if any(name in row["reason"] for name in names)]
    for component in plugins.all():
        if component.plugin not in chosen:
            continue
        if missing := component.unavailable():
            print(f"skipped  {component}: {missing}")
        elif violations := [*_clash(component, plugins), *check_component(component)]:
            problems += violations
        else:
            print(f"ok       {component}")
    problems += _unknown_order([item for item in plugins.all(StepExtensionSpec.kind) if item.plugin in chosen], plugins)
    return _report(problems)


def _is_empty(plugin: DiscoveredPlugin, plugins: Plugins) -> bool:
    return plugin in plugins.loaded and not vars(plugin.load()).keys() & set(hook_names())


def _doctor(options: argparse.Namespace, plugins: Plugins) -> int:
    for name, version in versions().items():
        print(f"{name:<13} {version}")
    points = [point for point in importlib.metadata.entry_points(group=GROUP)]
    own = [point for point in points if point.dist is not None and point.dist.name == DISTRIBUTION]
    print(
        f"\n{len(points)} entry points installed, {len(plugins.loaded)} plugins loaded, {len(plugins.all())} components"
    )
    problems = [] if own else [f"{DISTRIBUTION} has no entry points; install it again: pip install -e ."]
    problems += map(str, plugins.failures)
    for component in plugins.all():
        status, reason = availability(component, plugins)
        problems += _clash(component, plugins)
        if status in ("unavailable", "unused"):
            print(f"note     {component} is {status}: {reason}")
    for plugin in plugins.blocked:
        print(f"note     plugin {plugin.name!r} of {plugin.origin} is blocked")
    problems += _unknown_order(plugins.all(StepExtensionSpec.kind), plugins)
    for line in (*_costly(plugins.loaded), *slow_plugins(plugins)):
        print(f"warning  {line}")
    return _report(problems)


def _unknown_order(components: Iterable[Component], plugins: Plugins) -> list[str]:
    """Return the probably misspelt names in ``before`` and ``after``; print a note about other unknown ones."""
    unknown = list(unknown_names(components, declared_names(plugins)))
    for name in unknown:
        if not name.suggestion:
            print(f"note     {name}")
    return [str(name) for name in unknown if name.suggestion]


def _clash(component: Component, plugins: Plugins) -> list[str]:
    status, reason = availability(component, plugins)
    return [f"{component} is {reason}"] if status == "clash" else []


def _costly(plugins: Iterable[DiscoveredPlugin]) -> list[str]:
    """Return a line about each plugin whose declaration imports something heavy, or waits."""
    lines = []
    for plugin, cost in declaration_costs(list(plugins)).items():
        where = f"plugin {plugin.name!r} of {plugin.origin}"
        if cost.heavy:
            lines.append(
                f"{where} imports {', '.join(cost.heavy)} while declaring, which slows every command; move the "
                "implementation to another file"
            )
        if cost.waited:
            lines.append(
                f"{where} waits for {cost.waited:.1f} s while declaring, mostly in {cost.module}, which delays every "
                "command; sleeping, files and networks belong to the implementation"
            )
    return lines


def _report(problems: Sequence[str]) -> int:
    for problem in problems:
        print(_red(f"problem  {problem}"))
    print(f"{len(problems)} problem{'' if len(problems) == 1 else 's'}")
    return 1 if problems else 0


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    names = sorted(set(known))
    near = get_close_matches(name, names, 1)
    if near or len(names) <= MAX_NAMES:
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    else:
        nearest = get_close_matches(name, names, FEW_NAMES, cutoff=0.0)
        hint = f"the nearest names are {', '.join(nearest)}; all: sglang-plug plugins list"
    return f"no {kind} named {name!r}; {hint}"


def _every_key(plugins: Plugins) -> list[str]:
    components = plugins.all()
    return [
        *(name for plugin in plugins.loaded for name in (plugin.name, plugin.distribution)),
        *(component.spec.name for component in components),
        *(f"{component.spec.kind}:{component.spec.name}" for component in components),
    ]


def _print_columns(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _print_fields(title: str, fields: dict[str, Any]) -> None:
    print(title)
    for name, value in fields.items():
        for number, line in enumerate(str(value).splitlines()):
            print(f"  {'' if number else name:<13} {line}")


def _text(value: Any) -> str:
    if isinstance(value, frozenset | tuple):
        return ", ".join(sorted(map(str, value)))
    return "" if value is None else str(value)


def _red(text: str) -> str:
    use_colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return f"{RED}{text}{PLAIN}" if use_colour else text


command = PluginsCommand()
