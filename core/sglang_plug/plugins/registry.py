"""Discover plugins once, attribute everything they declare, resolve names; then never call a hook again."""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace

import pluggy

from sglang_plug.config import AUTO, ConfigError, EngineConfig, PluginError, PluginOptions
from sglang_plug.plugins.installed.discovery import DISTRIBUTION, DiscoveredPlugin, find_plugins
from sglang_plug.plugins.installed.lock import check_lock
from sglang_plug.system.hints import nearest_names

from . import hookspecs
from .choice import FLAGS, ComponentChoice, call_order, component_choices, disagreement, other_choices
from .component import Component, import_target
from .declaration import check_module, declared_specs, implements_runtime_hooks
from .hookspecs import Facts
from .lifecycle import ComponentLifecycle
from .settings import settings_fields

__all__ = ["Component", "Facts", "Failure", "Fingerprint", "PluginError", "Plugins", "import_target"]

logger = logging.getLogger(__name__)

SLOW = 1.0
"""Seconds of computing after which loading a plugin is worth a warning."""
Fingerprint = tuple[tuple[str, str, str], ...]
"""``(plugin, distribution, version)`` of every loaded plugin, in load order."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A plugin that could not be loaded, and why."""

    plugin: DiscoveredPlugin
    message: str
    trace: str

    def __str__(self) -> str:
        return f"plugin {self.plugin.name!r} of {self.plugin.origin} failed: {self.message}"


@dataclass(slots=True)
class Plugins:
    """The loaded plugins and what they declared."""

    options: PluginOptions
    loaded: list[DiscoveredPlugin] = field(default_factory=list)
    imported: list[DiscoveredPlugin] = field(default_factory=list)
    """All plugins whose declaring modules are imported, including ones that fail or whose components are hidden."""
    blocked: list[DiscoveredPlugin] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    slow: dict[DiscoveredPlugin, float] = field(default_factory=dict)
    """Seconds of computing that loading took, of plugins that delay every command."""
    lifecycle: ComponentLifecycle = field(default_factory=ComponentLifecycle)
    """The objects of this process that have ``on_start`` or ``on_stop``."""
    _manager: pluggy.PluginManager = field(default_factory=lambda: _manager())
    _components: dict[tuple[str, str], list[Component]] = field(default_factory=dict)
    _hidden: list[Component] = field(default_factory=list)
    _declared: dict[str, set[str]] = field(default_factory=dict)
    """``kind:name`` of everything declared, hidden components included -> the distributions that declare it."""

    @classmethod
    def discover(cls, options: PluginOptions | None = None, lifecycle: ComponentLifecycle | None = None) -> Plugins:
        """Import every plugin that is not blocked, the project's own first, and ask each what it offers.

        ``lifecycle`` starts and stops the components of the plugins; ``None``: one of their own.

        Raises ``PluginError`` for an unknown name in the options, and for any failure if ``options.strict``. Raises
        ``ConfigError`` if the plugins are not those of the lock file.
        """
        options = options or PluginOptions()
        discovered = find_plugins(options)
        if not discovered:
            raise PluginError("no plugins found; is sglang-plug installed? (pip install .)")
        imported = [plugin for plugin in discovered if not _is_blocked(plugin, options)]
        if options.locked:
            check_lock(options.locked, imported)
        plugins = cls(options, imported=imported, lifecycle=lifecycle or ComponentLifecycle())
        for plugin in discovered:
            if plugin not in imported:
                plugins.blocked.append(plugin)
                continue
            began = time.process_time()  # not the clock's: the machine may be busy with something else
            with plugins._isolated(plugin):
                plugins._load(plugin)
            if (took := time.process_time() - began) > SLOW:
                plugins.slow[plugin] = took
        plugins._assign_settings()
        plugins._check_names(discovered)
        return plugins

    def with_own_lifecycle(self) -> Plugins:
        """Return the same plugins with a lifecycle of their own, for another engine or rank in this process."""
        lifecycle = ComponentLifecycle()
        components = {
            key: [replace(component, lifecycle=lifecycle) for component in entries]
            for key, entries in self._components.items()
        }
        return replace(self, lifecycle=lifecycle, _components=components)

    def kinds(self) -> list[str]:
        """Every kind that something was declared of."""
        return sorted({kind for kind, _ in self._components})

    def names(self, kind: str) -> list[str]:
        """Names selectable for ``kind``, sorted."""
        return sorted(name for of, name in self._components if of == kind)

    def all(self, kind: str | None = None) -> list[Component]:
        """Every declared component (of ``kind``), clashing ones included, sorted by kind and name."""
        return [
            component
            for (of, _), entries in sorted(self._components.items())
            if kind in (None, of)
            for component in entries
        ]

    def hidden(self, kind: str) -> list[Component]:
        """Components of ``kind`` that the options leave out, of plugins that were imported nevertheless."""
        return [component for component in self._hidden if component.spec.kind == kind]

    def get(self, kind: str, name: str, others: Sequence[str] = ()) -> Component:
        """The one component of that name. Raises ``PluginError`` if there is none, or more than one.

        ``others``: values besides the names of components that the user may have meant, for the error.
        """
        candidates = self._components.get((kind, name), [])
        preferred = self.options.prefer.get(f"{kind}:{name}")
        chosen = [component for component in candidates if preferred in (None, component.plugin.distribution)]
        if len(chosen) == 1:
            return chosen[0]
        if chosen:
            raise PluginError(
                f"{' and '.join(map(str, chosen))} clash; add --prefer {kind}:{name}=DISTRIBUTION "
                f"with one of: {', '.join(component.plugin.distribution for component in chosen)}"
            )
        if candidates:
            raise PluginError(
                f"--prefer {kind}:{name}={preferred}: that of {preferred!r} is not among --plugins, "
                f"only that of {candidates[0].plugin.distribution!r} is"
            )
        for component in self._hidden:
            if component.key == f"{kind}:{name}":
                raise PluginError(f"{component} is excluded by --block-plugin or --plugins")
        excluded = ", ".join(plugin.name for plugin in self.blocked)
        raise PluginError(
            f"no {kind} named {name!r}; {nearest_names(name, [*others, *self.names(kind)], kind)}"
            f"{f'; excluded by --block-plugin or --plugins: {excluded}' if excluded else ''}{self._failed_lines()}"
        )

    def choose(self, kind: str, facts: Facts) -> str | None:
        """Return the plugins' choice for a ``kind`` left at ``auto``. Raises ``PluginError`` if one fails."""
        answer = self._first_choice(kind, facts)
        return None if answer is None else answer.name

    def resolve(self, kind: str, name: str, facts: Facts) -> Component:
        """``get``, after ``detect`` and then asking the plugins if ``name`` is ``auto``."""
        if name != AUTO:
            return self.get(kind, name)
        if (detected := self.detect(kind, facts)) is not None:
            return self.get(kind, detected.spec.name)
        answer = self._first_choice(kind, facts)
        if answer is None:
            raise PluginError(
                f"no plugin chose a {kind} for {AUTO!r}; name one of: "
                f"{', '.join(self.names(kind)) or 'none is declared'}{self._failed_lines()}"
            )
        try:
            return self.get(kind, answer.name)
        except PluginError as error:
            raise PluginError(f"{error}\n  (chosen for {AUTO!r} by plugin {answer.plugin!r})") from None

    def detect(self, kind: str, facts: Facts) -> Component | None:
        """Return the component of ``kind`` that recognises what ``facts`` has for it, or ``None``.

        Raises ``PluginError`` if two recognise it, or if one fails.
        """
        subject = facts.subjects.get(kind)
        claims = [] if subject is None else [component for component in self.all(kind) if component.detects(subject)]
        if len(claims) > 1:
            both = " and ".join(map(str, claims))
            raise PluginError(f"{both} recognise the model {facts.source!r}; name one with {FLAGS[kind]}")
        return claims[0] if claims else None

    def tried(self, kind: str) -> str:
        """List the components of ``kind`` that ``detect`` asks, for an error about a source that none recognises."""
        names = []
        for component in self.all(kind):
            if getattr(component.spec, "detects", None) is not None:
                missing = component.unavailable()
                state = f", unavailable: {missing}" if missing else ""
                names.append(f"{component.spec.name} ({component.plugin.origin}{state})")
        return ", ".join(names) or "none that are installed detect anything"

    def configure(self, config: EngineConfig) -> None:
        """Let every plugin refuse the final configuration by raising ``ConfigError``."""
        for call in self._manager.hook.configure.get_hookimpls():
            try:
                call.function(*([config] if call.argnames else []))
            except ConfigError as error:
                raise ConfigError(f"plugin {call.plugin_name!r} refuses the configuration: {error}") from error
            except (Exception, SystemExit) as error:
                raise PluginError(
                    f"plugin {call.plugin_name!r} failed in configure: {type(error).__name__}: {error}"
                ) from error

    def component_choices(self, kind: str, facts: Facts) -> list[ComponentChoice]:
        """Every plugin's choice of a ``kind`` left at ``auto``, in the order of the calls; the first is used.

        A component whose spec suits the model counts as chosen by its plugin where no plugin chooses. Raises
        ``PluginError`` if a plugin fails.
        """
        calls = call_order(self._manager.hook.choose_component.get_hookimpls(), self.loaded)
        choices = list(component_choices(calls, kind, facts))
        suited = (component for component in self.all(kind) if component.spec.matches_model(facts.model))
        return (
            choices
            or [
                ComponentChoice(component.spec.name, f"{component.plugin.distribution}:{component.plugin.name}")
                for component in suited
            ][:1]
        )

    def choosing_plugins(self) -> list[str]:
        """The plugins that may choose components, as ``distribution:plugin``, in the order in which they are called."""
        calls = call_order(self._manager.hook.choose_component.get_hookimpls(), self.loaded)
        return [call.plugin_name for call in calls]

    def _first_choice(self, kind: str, facts: Facts) -> ComponentChoice | None:
        """The first choice of ``choose_component``, if any; warns if another plugin would have chosen differently."""
        choices = self.component_choices(kind, facts)
        if not choices:
            return None
        if others := other_choices(choices):
            logger.warning("%s", disagreement(kind, choices[0], others))
        return choices[0]

    def check_settings(self) -> None:
        """Raise ``ConfigError`` for settings that do not fit, also of components that are not used."""
        for component in self.all():
            if component.raw_settings:
                component.settings()

    @property
    def fingerprint(self) -> Fingerprint:
        """The plugins and versions that every process of one server must agree on."""
        return tuple((plugin.name, plugin.distribution, plugin.version) for plugin in self.loaded)

    def _load(self, plugin: DiscoveredPlugin) -> None:
        module = plugin.load()
        check_module(module)
        specs = list(declared_specs(module))
        settings = self.options.settings
        components = [Component(spec, plugin, settings.get(spec.name, {}), self.lifecycle) for spec in specs]
        self._refuse_duplicates(components)
        visible = [component for component in components if self._is_visible(component)]
        for component in components:
            self._declared.setdefault(component.key, set()).add(plugin.distribution)
        self._hidden += [component for component in components if component not in visible]
        if not visible and not self._is_allowed(plugin):
            self.blocked.append(plugin)
            return
        if implements_runtime_hooks(module):
            self._manager.register(module, f"{plugin.distribution}:{plugin.name}")
        self.loaded.append(plugin)
        for component in visible:
            self._components.setdefault((component.spec.kind, component.spec.name), []).append(component)

    def _assign_settings(self) -> None:
        """Assign settings to the components of their name that declare settings, if any does.

        Where several do, each gets those that it knows, and those that none of them knows.
        """
        for name, values in self.options.settings.items():
            lists = [entries for (_, other), entries in self._components.items() if other == name]
            having = [entry for entries in lists for entry in entries if entry.spec.settings is not None]
            known = [_setting_names(component) for component in having] if len(having) > 1 else []
            unknown = {key for key in values if not any(key in names for names in known)}
            assigned = dict(zip(map(id, having), ({*names, *unknown} for names in known), strict=False))
            for entries in lists if having else ():
                entries[:] = [_with_settings(entry, assigned.get(id(entry))) for entry in entries]

    def _refuse_duplicates(self, components: list[Component]) -> None:
        """Refuse a distribution that declares one component twice: ``--prefer`` chooses between distributions only."""
        keys = [component.key for component in components]
        for component in components:
            others = self._components.get((component.spec.kind, component.spec.name), [])
            if keys.count(component.key) > 1:
                raise PluginError(f"declares {component.key} twice")
            for other in others:
                if other.plugin.distribution == component.plugin.distribution:
                    raise PluginError(f"declares {component.key}, as plugin {other.plugin.name!r} does already")

    def _is_allowed(self, plugin: DiscoveredPlugin) -> bool:
        """True unless there is an allow-list that does not name the plugin."""
        if plugin.distribution == DISTRIBUTION or plugin.explicit or not self.options.allow:
            return True
        return bool({plugin.name, plugin.distribution} & set(self.options.allow))

    def _is_visible(self, component: Component) -> bool:
        if component.key in self.options.block:
            return False
        return self._is_allowed(component.plugin) or component.key in self.options.allow

    def _check_names(self, discovered: list[DiscoveredPlugin]) -> None:
        """Every name the user gave must be known: a typo must not switch anything off silently."""
        plugins = {plugin.name for plugin in discovered} | {plugin.distribution for plugin in discovered}
        declared = self._declared
        for flag, values in (("--plugins", self.options.allow), ("--block-plugin", self.options.block)):
            for name in values:
                if name not in plugins and not (":" in name and name in declared):
                    kind, known = ("component", declared) if ":" in name else ("plugin", plugins)
                    raise PluginError(f"{flag}: no {kind} named {name!r}; {nearest_names(name, sorted(known), kind)}")
        for key, distribution in self.options.prefer.items():
            if key not in declared:
                raise PluginError(
                    f"--prefer: nothing declares {key!r}; {nearest_names(key, sorted(declared), 'component')}"
                )
            if distribution not in (owners := declared[key]):
                hint = nearest_names(distribution, sorted(owners), "distribution")
                raise PluginError(
                    f"--prefer {key}={distribution}: {distribution!r} does not declare it; {hint}{self._failed_lines()}"
                )
        names = {name for _, name in self._components}
        for name in self.options.settings:
            if name not in names:
                raise PluginError(
                    f"--set: no component named {name!r}; {nearest_names(name, sorted(names), 'component')}"
                )

    def _failed_lines(self) -> str:
        return "".join(f"\n  {failure}" for failure in self.failures)

    @contextmanager
    def _isolated(self, plugin: DiscoveredPlugin) -> Iterator[None]:
        """One bad plugin takes down neither the command line nor the server, unless ``--strict-plugins``."""
        try:
            with redirect_stdout(sys.stderr):  # a command's output may be read by programs
                yield
        except (Exception, SystemExit) as error:
            message = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
            failure = Failure(plugin, message, traceback.format_exc())
            if self.options.strict:
                raise PluginError(f"{failure} (--strict-plugins)") from error
            self.failures.append(failure)


def _is_blocked(plugin: DiscoveredPlugin, options: PluginOptions) -> bool:
    if {plugin.name, plugin.distribution} & set(options.block):
        return True
    named = [item for item in options.allow if ":" not in item]
    if not named or plugin.distribution == DISTRIBUTION or plugin.explicit:
        return False
    return not ({plugin.name, plugin.distribution} & set(named)) and len(named) == len(options.allow)


def _setting_names(component: Component) -> set[str]:
    """Return the names of a component's settings; none if their class cannot be imported, which is reported later."""
    try:
        return {setting.name for setting in settings_fields(component.settings_class())}
    except PluginError:
        return set()


def _with_settings(component: Component, names: set[str] | None) -> Component:
    """Return a component with those of its settings that are in ``names``, all if that is ``None``."""
    if component.spec.settings is None:
        return replace(component, raw_settings={})
    if names is None:
        return component
    return replace(
        component, raw_settings={key: component.raw_settings[key] for key in component.raw_settings if key in names}
    )


def _manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(hookspecs.hookspec.project_name)
    manager.add_hookspecs(hookspecs)
    return manager
