"""``sglang-plug plugins``: what is plugged in, whether it works, and what to do if not."""

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

from sglang_plug import PluginError, Plugins
from sglang_plug.declaration import hook_names
from sglang_plug.discovery import DISTRIBUTION, GROUP, Found
from sglang_plug.plugins import Component, Failure
from sglang_plug_api.heavy_imports import heavy_imports
from sglang_plug_api.plugin_check import check_component, settings_of
from sglang_plug_api.plugin_table import availability, plugin_table, slow_plugins

from .version import versions

RED, PLAIN = "\x1b[31m", "\x1b[0m"


class PluginsCommand:
    """The actions ``list``, ``show``, ``check`` and ``doctor``."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """One subparser for each action."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        listing = actions.add_parser("list", help="everything that is declared, and by whom")
        listing.add_argument("--json", action="store_true", help="as JSON")
        listing.add_argument("--kind", help=f"only this kind: {', '.join(plugins.kinds())}")
        listing.set_defaults(act=_list)
        show = actions.add_parser("show", help="one plugin or component in full")
        show.add_argument("key", metavar="KEY", help="a plugin, kind:name or name")
        show.set_defaults(act=_show)
        check = actions.add_parser("check", help="load everything a plugin declares; status 1 on a problem")
        check.add_argument("name", metavar="NAME", help="a plugin or a distribution")
        check.set_defaults(act=_check)
        doctor = actions.add_parser("doctor", help="look at the whole installation; status 1 if something is broken")
        doctor.set_defaults(act=_doctor)

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """The chosen action's exit status."""
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
    for failure in plugins.failures:
        print(_red(str(failure)))
    return 0


def _show(options: argparse.Namespace, plugins: Plugins) -> int:
    key: str = options.key
    loaded = [one for one in plugins.loaded if one.name == key]
    failures = [one for one in plugins.failures if one.found.name == key]
    components = [one for one in plugins.all() if key in (one.spec.name, f"{one.spec.kind}:{one.spec.name}")]
    if not loaded and not failures and not components:
        raise PluginError(_unknown("plugin or component", key, _every_key(plugins)))
    for found in loaded:
        _show_plugin(found, plugins)
    for failure in failures:
        _show_failure(failure)
    for component in components:
        _show_component(component, plugins)
    return 0


def _show_plugin(found: Found, plugins: Plugins) -> None:
    declared = [f"{one.spec.kind}:{one.spec.name}" for one in plugins.all() if one.found == found]
    _print_fields(
        f"plugin {found.name}",
        {
            "distribution": found.origin,
            "module": found.module,
            "file": getattr(sys.modules.get(found.module), "__file__", None) or "unknown",
            "declares": ", ".join(declared) or "nothing",
        },
    )


def _show_failure(failure: Failure) -> None:
    found = failure.found
    fields = {"distribution": found.origin, "module": found.module, "file": found.file or "", "failed": failure.message}
    _print_fields(f"plugin {found.name}", fields)
    print(_red(failure.trace))


def _show_component(component: Component, plugins: Plugins) -> None:
    spec, found = component.spec, component.found
    status, reason = availability(component, plugins)
    fields: dict[str, Any] = {
        "plugin": f"{found.name} of {found.origin}",
        "declared in": getattr(sys.modules.get(found.module), "__file__", None) or found.module,
        "status": f"{status}: {reason}" if reason else status,
    }
    for item in dataclasses.fields(spec):
        fields[item.name] = _text(getattr(spec, item.name))
    _print_fields(f"{spec.kind}:{spec.name}", fields)
    try:
        for name, kind, default in settings_of(component):
            print(f"  --set {spec.name}.{name}={kind}" + (f" (default {default})" if default else " (required)"))
    except Exception as error:  # a plugin's own code is imported here
        print(_red(f"  settings cannot be imported: {type(error).__name__}: {error}"))


def _check(options: argparse.Namespace, plugins: Plugins) -> int:
    name: str = options.name
    every = [*plugins.loaded, *(failure.found for failure in plugins.failures), *plugins.blocked]
    chosen = [one for one in every if name in (one.name, one.distribution)]
    if not chosen:
        raise PluginError(_unknown("plugin", name, {one.name for one in every} | {one.distribution for one in every}))
    problems = [str(failure) for failure in plugins.failures if failure.found in chosen]
    problems += [f"plugin {one.name!r} is blocked, so it was not checked" for one in chosen if one in plugins.blocked]
    problems += [f"plugin {one.name!r} of {one.origin} implements no hook" for one in chosen if _is_empty(one, plugins)]
    problems += _heavy(one for one in chosen if one in plugins.loaded)
    problems += [line for line in slow_plugins(plugins) if any(repr(one.name) in line for one in chosen)]
    for component in plugins.all():
        if component.found not in chosen:
            continue
        if missing := component.unavailable():
            print(f"skipped  {component}: {missing}")
        elif found := [*_clash(component, plugins), *check_component(component)]:
            problems += found
        else:
            print(f"ok       {component}")
    return _report(problems)


def _is_empty(found: Found, plugins: Plugins) -> bool:
    return found in plugins.loaded and not vars(found.load()).keys() & set(hook_names())


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
    for found in plugins.blocked:
        print(f"note     plugin {found.name!r} of {found.origin} is blocked")
    for line in (*_heavy(plugins.loaded), *slow_plugins(plugins)):
        print(f"warning  {line}")
    return _report(problems)


def _clash(component: Component, plugins: Plugins) -> list[str]:
    status, reason = availability(component, plugins)
    return [f"{component} is {reason}"] if status == "clash" else []


def _heavy(plugins: Iterable[Found]) -> list[str]:
    return [
        f"plugin {found.name!r} of {found.origin} imports {', '.join(names)} while declaring, which slows every "
        "command; move the implementation to another file"
        for found, names in heavy_imports(list(plugins)).items()
        if names
    ]


def _report(problems: Sequence[str]) -> int:
    for problem in problems:
        print(_red(f"problem  {problem}"))
    print(f"{len(problems)} problem{'' if len(problems) == 1 else 's'}")
    return 1 if problems else 0


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    names = sorted(set(known))
    near = get_close_matches(name, names, 1)
    return f"no {what} named {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}")


def _every_key(plugins: Plugins) -> list[str]:
    components = plugins.all()
    return [
        *(one.name for one in plugins.loaded),
        *(one.spec.name for one in components),
        *(f"{one.spec.kind}:{one.spec.name}" for one in components),
    ]


def _print_columns(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _print_fields(title: str, fields: dict[str, Any]) -> None:
    print(title)
    for name, value in fields.items():
        print(f"  {name:<13} {value}".rstrip())


def _text(value: Any) -> str:
    if isinstance(value, frozenset | tuple):
        return ", ".join(sorted(map(str, value)))
    return "" if value is None else str(value)


def _red(text: str) -> str:
    colourful = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return f"{RED}{text}{PLAIN}" if colourful else text


command = PluginsCommand()
