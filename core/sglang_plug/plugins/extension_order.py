"""The order in which step extensions are called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from sglang_plug.config import ConfigError
from sglang_plug.system.hints import did_you_mean

from .component import Component
from .registry import Plugins
from .specs import StepExtensionSpec


@dataclass(frozen=True, slots=True)
class UnknownName:
    """A name in ``before`` or ``after`` of a step extension that no plugin declares, so that it has no effect.

    It may be that of an extension which is not installed here, or misspelt.
    """

    component: Component
    field: str
    name: str
    suggestion: str
    """Names the declared extension that was probably meant, if any."""

    def __str__(self) -> str:
        return f"{self.component}: {self.field}= names {self.name!r}, which no plugin declares{self.suggestion}"


def declared_names(plugins: Plugins) -> list[str]:
    """Return the names of all step extensions that plugins declare, also of those that are blocked or unavailable."""
    kind = StepExtensionSpec.kind
    return sorted({component.spec.name for component in (*plugins.all(kind), *plugins.hidden(kind))})


def unknown_names(components: Iterable[Component], known: Iterable[str]) -> Iterator[UnknownName]:
    """Yield the names in ``before`` and ``after`` of ``components`` that are none of ``known``, the declared names."""
    declared = set(known)
    for component in components:
        spec = component.spec_as(StepExtensionSpec)
        for field, names in (("before", spec.before), ("after", spec.after)):
            for name in names:
                if name not in declared:
                    yield UnknownName(component, field, name, did_you_mean(name, sorted(declared)))


def usable_extensions(plugins: Plugins) -> list[Component]:
    """Return the step extensions that can be used here, in the order in which they are called.

    Raises ``PluginError`` if several distributions declare one name and ``--prefer`` chooses none of them, and
    ``ConfigError`` for a contradicting order.
    """
    kind = StepExtensionSpec.kind
    components = [plugins.get(kind, name) for name in plugins.names(kind)]
    return ordered_extensions([component for component in components if not component.unavailable()])


def ordered_extensions(components: Sequence[Component]) -> list[Component]:
    """Sort ``components`` by their ``before`` and ``after``, and otherwise by name.

    Raises ``ConfigError`` if these contradict each other.
    """
    by_name = {component.spec.name: component for component in sorted(components, key=lambda other: other.spec.name)}
    earlier: dict[str, set[str]] = {name: set() for name in by_name}
    for name, component in by_name.items():
        spec = component.spec_as(StepExtensionSpec)
        earlier[name] |= set(spec.after) & by_name.keys()
        for later in set(spec.before) & by_name.keys():
            earlier[later].add(name)
    try:
        order = tuple(TopologicalSorter({name: sorted(before) for name, before in earlier.items()}).static_order())
    except CycleError as error:
        circle = " before ".join(error.args[1])
        owners = " and ".join(str(by_name[name]) for name in dict.fromkeys(error.args[1]))
        raise ConfigError(
            f"step extensions contradict each other in before= and after=: {circle}; block one of {owners}"
        ) from None
    return [by_name[name] for name in order]
