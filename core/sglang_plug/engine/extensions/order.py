"""The order in which step extensions are called."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from sglang_plug.config import ConfigError
from sglang_plug.plugins.component import Component
from sglang_plug.plugins.specs import StepExtensionSpec


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
        raise ConfigError(f"step extensions contradict each other in before= and after=: {circle}") from None
    return [by_name[name] for name in order]
