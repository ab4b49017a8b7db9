"""Building the step extensions of an engine, before the weights are loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from sglang_plug.config import EXTENSION, FLAG, ConfigError, EngineConfig
from sglang_plug.contracts.serving.extension import ExtensionContext, StepExtension
from sglang_plug.engine.startup.resolve import Choice, Resolved
from sglang_plug.plugins.attribution import attributed, described, make_with_settings
from sglang_plug.plugins.registry import Component, PluginError, Plugins
from sglang_plug.plugins.specs import StepExtensionSpec

from .points import ExtensionPoints, extension_points

KIND = StepExtensionSpec.kind


@dataclass(frozen=True, slots=True)
class BuiltExtensions:
    """The step extensions of an engine."""

    points: ExtensionPoints
    resolved: Resolved
    """The choices, with the components that the extensions chose."""


def build_extensions(resolved: Resolved, plugins: Plugins) -> BuiltExtensions:
    """Build the extensions that the configuration uses, in their declared order.

    Raises ``ConfigError`` for options that no loaded extension serves, and whatever an extension refuses.
    """
    components = ordered_extensions([one for one in plugins.all(KIND) if not one.unavailable()])
    refuse_unserved_options(resolved.config, {component.spec.name for component in components})
    chosen: dict[str, Choice] = {}

    def make(component: Component, reason: str, contract: type) -> Any:
        chosen[component.spec.kind] = Choice(component, reason)
        return make_with_settings(component, contract=contract)

    context = ExtensionContext(
        config=resolved.config,
        plugins=plugins,
        facts=resolved.facts,
        settings=None,
        tasks=resolved.tasks,
        vocab_size=resolved.vocab_size,
        rolls_back=not resolved.states,
        make=make,
        describe=lambda error, component: described(error, components=(component,)),
    )
    extensions: list[StepExtension] = []
    for component in components:
        with attributed(component, "while it was built"):
            extension = component.load()(replace(context, settings=component.settings()))
        if extension is None:
            continue
        if not isinstance(extension, StepExtension):
            raise PluginError(f"{component} returned {type(extension).__name__} instead of a StepExtension or None")
        extensions.append(extension)
    return BuiltExtensions(extension_points(extensions), replace(resolved, choices={**resolved.choices, **chosen}))


def ordered_extensions(components: Sequence[Component]) -> list[Component]:
    """Sort ``components`` by their ``before`` and ``after``, and otherwise by name.

    Raises ``ConfigError`` if these contradict each other.
    """
    by_name = {component.spec.name: component for component in sorted(components, key=lambda one: one.spec.name)}
    earlier: dict[str, set[str]] = {name: set() for name in by_name}
    for name, component in by_name.items():
        spec = component.spec
        assert isinstance(spec, StepExtensionSpec)
        earlier[name] |= set(spec.after) & by_name.keys()
        for later in set(spec.before) & by_name.keys():
            earlier[later].add(name)
    try:
        order = tuple(TopologicalSorter({name: sorted(before) for name, before in earlier.items()}).static_order())
    except CycleError as error:
        circle = " before ".join(error.args[1])
        raise ConfigError(f"step extensions contradict each other in before= and after=: {circle}") from None
    return [by_name[name] for name in order]


def refuse_unserved_options(config: EngineConfig, loaded: Iterable[str]) -> None:
    """Raise ``ConfigError`` for an option that was set and that only an extension serves that is not loaded."""
    names = set(loaded)
    for path, value, default, metadata in _options(config):
        extension = metadata.get(EXTENSION)
        if extension is not None and extension not in names and value != default:
            raise ConfigError(
                f"{metadata.get(FLAG, path)} {value}: the step extension {extension!r}, which serves this option, is "
                "not loaded; it is blocked or not installed"
            )


def _options(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any, Mapping[Any, Any]]]:
    """Yield path, value, default and metadata of each option."""
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from _options(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", value, field.default, field.metadata
