"""Discover plugins once, attribute everything they declare, resolve names; then never call a hook again."""

from __future__ import annotations

import importlib
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, is_dataclass, replace
from difflib import get_close_matches
from typing import Any

import pluggy

from sglang_plug.config import AUTO, ConfigError, EngineConfig, PluginOptions

from . import hookspecs
from .declaration import check_module, declared_specs
from .discovery import DISTRIBUTION, Found, find_plugins
from .requirements import unmet
from .settings import parse_settings
from .specs import Spec

SLOW = 1.0
"""Seconds of computing after which loading a plugin is worth a warning."""
Fingerprint = tuple[tuple[str, str, str], ...]
"""``(plugin, distribution, version)`` of every loaded plugin, in load order."""


class PluginError(ConfigError):
    """A plugin is broken, ambiguous or absent; the message names the culprit and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts that ``choose_component`` may decide by. Plain values; one that is not known yet is ``None``."""

    device: str = "cpu"
    dtype: str | None = None
    model: Any = None
    """The checkpoint's configuration, once it has been read."""
    shape: Any = None
    """The ``AttentionShape``, once the model class is known."""
    platform: Mapping[str, Any] = field(default_factory=dict)
    """What else is known of the machine, e.g. ``{"capability": (9, 0)}`` on CUDA."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A plugin that could not be loaded, and why."""

    found: Found
    message: str
    trace: str

    def __str__(self) -> str:
        return f"plugin {self.found.name!r} of {self.found.origin} failed: {self.message}"


@dataclass(frozen=True, slots=True)
class Component:
    """A declared component, who declared it, and the settings the user gave it."""

    spec: Spec
    found: Found
    given: Mapping[str, Any]

    def load(self, base: type | None = None) -> Any:
        """Import the target. The user selected it, so a failure is fatal and attributed.

        Raises ``PluginError`` if the import fails or the target is not a subclass of ``base``.
        """
        if missing := self.unavailable():
            raise PluginError(f"{self} is unavailable: {missing}")
        try:
            target = import_target(self.spec.target)
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"{self} could not be imported from {self.spec.target!r}: {type(error).__name__}: {error}"
            ) from error
        if base is not None and not (isinstance(target, type) and issubclass(target, base)):
            raise PluginError(f"{self}: {self.spec.target!r} must be a subclass of {base.__qualname__}")
        return target

    def settings(self) -> Any:
        """The component's settings object, or ``None`` if it declares none. Raises ``ConfigError``."""
        if self.spec.settings is None:
            if self.given:
                raise ConfigError(f"{self} has no settings, but --set {self.spec.name}.{min(self.given)} was given")
            return None
        try:
            kind = import_target(self.spec.settings)
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"settings of {self} could not be imported from {self.spec.settings!r}: {type(error).__name__}: {error}"
            ) from error
        if not (isinstance(kind, type) and is_dataclass(kind)):
            raise PluginError(f"{self}: settings {self.spec.settings!r} must be a dataclass")
        return parse_settings(kind, self.given, self.spec.name)

    def unavailable(self) -> str:
        """Return the reason that the component cannot be used here, or an empty string."""
        return unmet(self.spec.needs)

    @property
    def key(self) -> str:
        """``kind:name``."""
        return f"{self.spec.kind}:{self.spec.name}"

    def __str__(self) -> str:
        return f"{self.spec.kind} {self.spec.name!r} from {self.found.origin} (plugin {self.found.name!r})"


@dataclass(slots=True)
class Plugins:
    """The loaded plugins and what they declared."""

    options: PluginOptions
    loaded: list[Found] = field(default_factory=list)
    blocked: list[Found] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    slow: dict[Found, float] = field(default_factory=dict)
    """Seconds of computing that loading took, of plugins that delay every command."""
    _manager: pluggy.PluginManager = field(default_factory=lambda: _manager())
    _components: dict[tuple[str, str], list[Component]] = field(default_factory=dict)
    _hidden: list[Component] = field(default_factory=list)
    _declared: dict[str, set[str]] = field(default_factory=dict)
    """``kind:name`` of everything declared, hidden components included -> the distributions that declare it."""

    @classmethod
    def discover(cls, options: PluginOptions | None = None) -> Plugins:
        """Import every plugin that is not blocked, the project's own first, and ask each what it offers.

        Raises ``PluginError`` for an unknown name in the options, and for any failure if ``options.strict``.
        """
        plugins = cls(options or PluginOptions())
        found = find_plugins(plugins.options)
        if not found:
            raise PluginError("no plugins found; is sglang-plug installed? (pip install .)")
        for one in found:
            if plugins._is_blocked(one):
                plugins.blocked.append(one)
                continue
            began = time.process_time()  # not the clock's: the machine may be busy with something else
            with plugins._isolated(one):
                plugins._load(one)
            if (took := time.process_time() - began) > SLOW:
                plugins.slow[one] = took
        plugins._settle_settings()
        plugins._check_names(found)
        return plugins

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

    def get(self, kind: str, name: str) -> Component:
        """The one component of that name. Raises ``PluginError`` if there is none, or more than one."""
        found = self._components.get((kind, name), [])
        wanted = self.options.prefer.get(f"{kind}:{name}")
        chosen = [one for one in found if wanted in (None, one.found.distribution)]
        if len(chosen) == 1:
            return chosen[0]
        if chosen:
            raise PluginError(
                f"{' and '.join(map(str, chosen))} clash; add --prefer {kind}:{name}=DISTRIBUTION "
                f"with one of: {', '.join(one.found.distribution for one in chosen)}"
            )
        if found:
            raise PluginError(
                f"--prefer {kind}:{name}={wanted}: that of {wanted!r} is not among --plugins, "
                f"only that of {found[0].found.distribution!r} is"
            )
        raise PluginError(f"no {kind} named {name!r}; {self._hint(name, self.names(kind))}{self._failed_lines()}")

    def choose(self, kind: str, facts: Facts) -> str | None:
        """Return the plugins' choice for a ``kind`` left at ``auto``. Raises ``PluginError`` if one fails."""
        return self._answer(kind, facts)[0]

    def resolve(self, kind: str, name: str, facts: Facts) -> Component:
        """``get``, after asking the plugins if ``name`` is ``auto``."""
        if name != AUTO:
            return self.get(kind, name)
        chosen, plugin = self._answer(kind, facts)
        if chosen is None:
            raise PluginError(
                f"no plugin chose a {kind} for {AUTO!r}; name one of: "
                f"{', '.join(self.names(kind)) or 'none is declared'}{self._failed_lines()}"
            )
        try:
            return self.get(kind, chosen)
        except PluginError as error:
            raise PluginError(f"{error}\n  (chosen for {AUTO!r} by plugin {plugin!r})") from None

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

    def _answer(self, kind: str, facts: Facts) -> tuple[str | None, str]:
        """The first answer to ``choose_component``, and the plugin that gave it; the last loaded is asked first.

        Without an answer it is the first component whose spec says that it suits the model.
        """
        given = {"kind": kind, "facts": facts}
        for call in reversed(self._manager.hook.choose_component.get_hookimpls()):
            try:
                answer: Any = call.function(*(given[name] for name in call.argnames))
            except (Exception, SystemExit) as error:
                raise PluginError(
                    f"plugin {call.plugin_name!r} failed to choose a {kind}: {type(error).__name__}: {error}"
                ) from error
            if not isinstance(answer, str | None):
                raise PluginError(
                    f"plugin {call.plugin_name!r} chose {answer!r} as {kind}; choose_component returns a name or None"
                )
            if answer is not None:
                return answer, call.plugin_name
        return next(
            ((one.spec.name, one.found.name) for one in self.all(kind) if one.spec.suits(facts.model)), (None, "")
        )

    @property
    def fingerprint(self) -> Fingerprint:
        """The plugins and versions that every process of one server must agree on."""
        return tuple((one.name, one.distribution, one.version) for one in self.loaded)

    def _is_blocked(self, found: Found) -> bool:
        allow, block = self.options.allow, self.options.block
        if {found.name, found.distribution} & set(block):
            return True
        named = [item for item in allow if ":" not in item]
        if not named or found.distribution == DISTRIBUTION or found.explicit:
            return False
        return not ({found.name, found.distribution} & set(named)) and len(named) == len(allow)

    def _load(self, found: Found) -> None:
        module = found.load()
        check_module(module)
        specs = list(declared_specs(module))
        components = [Component(spec, found, self.options.settings.get(spec.name, {})) for spec in specs]
        self._refuse_twins(components)
        visible = [component for component in components if self._is_visible(component)]
        for component in components:
            self._declared.setdefault(component.key, set()).add(found.distribution)
        self._hidden += [component for component in components if component not in visible]
        if not visible and not self._is_allowed(found):
            self.blocked.append(found)
            return
        self._manager.register(module, f"{found.distribution}:{found.name}")
        self.loaded.append(found)
        for component in visible:
            self._components.setdefault((component.spec.kind, component.spec.name), []).append(component)

    def _settle_settings(self) -> None:
        """Assign settings to the components of their name that declare settings, if any does."""
        having = {component.spec.name for component in self.all() if component.spec.settings is not None}
        for (_, name), entries in self._components.items():
            if name in having:
                entries[:] = [one if one.spec.settings is not None else replace(one, given={}) for one in entries]

    def _refuse_twins(self, components: list[Component]) -> None:
        """``--prefer`` settles clashes between distributions; within one there is nothing to prefer."""
        keys = [component.key for component in components]
        for component in components:
            others = self._components.get((component.spec.kind, component.spec.name), [])
            if keys.count(component.key) > 1:
                raise PluginError(f"declares {component.key} twice")
            for other in others:
                if other.found.distribution == component.found.distribution:
                    raise PluginError(f"declares {component.key}, as plugin {other.found.name!r} does already")

    def _is_allowed(self, found: Found) -> bool:
        """True unless there is an allow-list that does not name the plugin."""
        if found.distribution == DISTRIBUTION or found.explicit or not self.options.allow:
            return True
        return bool({found.name, found.distribution} & set(self.options.allow))

    def _is_visible(self, component: Component) -> bool:
        if component.key in self.options.block:
            return False
        return self._is_allowed(component.found) or component.key in self.options.allow

    def _check_names(self, found: list[Found]) -> None:
        """Every name the user gave must be known: a typo must not switch anything off silently."""
        plugins = {one.name for one in found} | {one.distribution for one in found}
        declared = self._declared
        for flag, given in (("--plugins", self.options.allow), ("--block-plugin", self.options.block)):
            for name in given:
                if name not in plugins and not (":" in name and name in declared):
                    what, known = ("component", declared) if ":" in name else ("plugin", plugins)
                    raise PluginError(f"{flag}: no {what} named {name!r}; {self._hint(name, sorted(known))}")
        for key, wanted in self.options.prefer.items():
            if key not in declared:
                raise PluginError(f"--prefer: nothing declares {key!r}; {self._hint(key, sorted(declared))}")
            if wanted not in (owners := declared[key]):
                hint = self._hint(wanted, sorted(owners))
                raise PluginError(
                    f"--prefer {key}={wanted}: {wanted!r} does not declare it; {hint}{self._failed_lines()}"
                )
        names = {name for _, name in self._components}
        for name in self.options.settings:
            if name not in names:
                raise PluginError(f"--set: no component named {name!r}; {self._hint(name, sorted(names))}")

    def _hint(self, name: str, known: list[str]) -> str:
        near = get_close_matches(name, known, 1)
        return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"

    def _failed_lines(self) -> str:
        return "".join(f"\n  {failure}" for failure in self.failures)

    @contextmanager
    def _isolated(self, found: Found) -> Iterator[None]:
        """One bad plugin takes down neither the command line nor the server, unless ``--strict-plugins``."""
        try:
            with redirect_stdout(sys.stderr):  # a command's output may be read by programs
                yield
        except (Exception, SystemExit) as error:
            message = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
            failure = Failure(found, message, traceback.format_exc())
            if self.options.strict:
                raise PluginError(f"{failure} (--strict-plugins)") from error
            self.failures.append(failure)


def import_target(target: str) -> Any:
    """The object that ``"package.module:attribute"`` names."""
    module, _, attribute = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def _manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(hookspecs.hookspec.project_name)
    manager.add_hookspecs(hookspecs)
    return manager
