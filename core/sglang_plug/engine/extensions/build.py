"""Building the step extensions of an engine, before the weights are loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from sglang_plug.config import EXTENSION, FLAG, OFF, ConfigError, EngineConfig
from sglang_plug.contracts.extension.base import ExtensionContext, StepExtension
from sglang_plug.contracts.extension.phases import PHASES
from sglang_plug.contracts.extension.step_phases import ModelPhase
from sglang_plug.contracts.request import Request
from sglang_plug.contracts.serving.executor import SINGLE_RANK, Collectives
from sglang_plug.engine.loading.resolve import Resolved
from sglang_plug.engine.messages.rank_messages import all_ranks_succeeded
from sglang_plug.plugins.attribution import attributed, described, signature_problems
from sglang_plug.plugins.extension_methods import combination_problem, overrides, uncalled_methods
from sglang_plug.plugins.extension_order import declared_names, unknown_names, usable_extensions
from sglang_plug.plugins.registry import Component, PluginError, Plugins
from sglang_plug.plugins.request_fields import ComponentRequestFields, RequestFields
from sglang_plug.plugins.spec import EXTENSION_FIELDS
from sglang_plug.plugins.specs import StepExtensionSpec

from .choices import ExtensionChoices
from .points import ExtensionPoints, extension_points

logger = logging.getLogger(__name__)

KIND = StepExtensionSpec.kind
SendCommand = Callable[[str, bytes], None]
"""Sends the extension of a name a command on every worker rank."""


@dataclass(frozen=True, slots=True)
class BuiltExtensions:
    """The step extensions of an engine."""

    points: ExtensionPoints
    resolved: Resolved
    """The choices of the engine and of the extensions."""
    choices: ExtensionChoices
    """The components that the extensions chose."""
    components: tuple[Component, ...]
    """The components of the extensions."""

    def request_fields(self, plugins: Plugins) -> RequestFields:
        """Return the request fields of all plugins; those of extensions that are not used here are refused."""
        fields, used = RequestFields.of(plugins), {component.key for component in self.components}
        unused = [
            declared.component
            for declared in fields.components
            if declared.component.spec.kind == KIND and declared.component.key not in used
        ]
        return fields.without(unused, "is not used with this configuration")


@dataclass(frozen=True, slots=True)
class RankLink:
    """The ranks as one extension sees them. An ``ExtensionRanks``."""

    name: str
    """The extension's."""
    collectives: Collectives
    device: torch.device
    command: SendCommand

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self.collectives.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.collectives.size

    def send(self, command: bytes) -> None:
        """Let every worker rank follow ``command``."""
        self.command(self.name, command)

    def all_ranks_succeeded(self, done: bool) -> bool:
        """Return True if ``done`` is true on every rank."""
        return all_ranks_succeeded(done, self.collectives, self.device)


def send_nothing(name: str, command: bytes) -> None:
    """Send a command to nobody: there is only one rank."""


def build_extensions(
    resolved: Resolved,
    plugins: Plugins,
    *,
    collectives: Collectives = SINGLE_RANK,
    command: SendCommand = send_nothing,
) -> BuiltExtensions:
    """Build the extensions that the configuration uses, in their declared order; on worker ranks those made for them.

    ``collectives`` are this rank's; ``command`` sends commands to the worker ranks. Raises ``ConfigError`` for options
    that no loaded extension serves, and whatever an extension refuses: those that were built are closed then.
    """
    components = usable_extensions(plugins)
    if collectives.rank == 0:
        for unknown in unknown_names(components, declared_names(plugins)):
            logger.log(logging.WARNING if unknown.suggestion else logging.DEBUG, "%s", unknown)
    refuse_unserved_options(resolved.config, {component.spec.name for component in components})
    choices = ExtensionChoices(resolved)
    built: list[tuple[Component, StepExtension]] = []
    with ExitStack() as unless_built:
        for component in components:
            spec = component.spec_as(StepExtensionSpec)
            if collectives.rank > 0 and not spec.worker_ranks:
                continue
            ranks = RankLink(spec.name, collectives, resolved.device, command)
            with attributed(component, "while it was built"):
                extension = component.load()(_context(component, resolved, plugins, ranks, choices))
            if extension is None:
                continue
            _check(component, extension, collectives.size)
            unless_built.callback(extension.close)
            component.lifecycle.add(component, extension)
            built.append((component, extension))
        labels = {component.spec.name: str(component) for component, _ in built}
        extensions = {used.spec.name: extension for used, extension in built}
        points = extension_points(extensions, _refusals(built), labels, resolved.vocab_size)
        if collectives.rank == 0:
            _refuse_unserved_states(resolved, points)
        unless_built.pop_all()
    resolved = replace(resolved, choices={**resolved.choices, **choices.chosen})
    return BuiltExtensions(points, resolved, choices, tuple(component for component, _ in built))


def _context(
    component: Component,
    resolved: Resolved,
    plugins: Plugins,
    ranks: RankLink,
    choices: ExtensionChoices,
) -> ExtensionContext:
    """Return the facts for one extension, which adds the components that it chooses to ``choices``."""
    return ExtensionContext(
        config=resolved.config,
        plugins=plugins,
        facts=resolved.facts,
        device=resolved.device,
        dtype=resolved.dtype,
        model=resolved.choices["model"].component,
        ranks=ranks,
        settings=component.settings(),
        request_fields=_fields_reader(component),
        tasks=resolved.tasks,
        vocab_size=resolved.vocab_size,
        max_running=resolved.max_running,
        chunk_size=resolved.chunk_size,
        states=resolved.states,
        make=choices.make,
        choose=choices.choose,
        vocabulary=choices.vocabulary,
        describe=lambda error, component: described(error, components=(component,)),
    )


def _fields_reader(component: Component) -> Callable[[Request], Any]:
    """Return the function that reads the component's fields of a request. Raises ``PluginError`` for a bad class."""
    fields = ComponentRequestFields.of(component)
    return lambda request: None if fields is None else fields.among(request.params.processor_fields)


def _check(component: Component, extension: object, ranks: int) -> None:
    """Raise ``PluginError`` if an extension is none, or if steps could be computed without it by mistake.

    Raises ``ConfigError`` if it cannot work with ``ranks`` ranks.
    """
    if not isinstance(extension, StepExtension):
        raise PluginError(f"{component} returned {type(extension).__name__} instead of a StepExtension or None")
    _check_methods(component, extension)
    if (problem := combination_problem(type(extension))) is not None:
        raise PluginError(f"{component} {problem}")
    if not overrides(type(extension), ModelPhase, "context"):
        return
    if ranks > 1 and not component.spec_as(StepExtensionSpec).worker_ranks:
        raise ConfigError(f"{component} does not work with several ranks; leave out --tp-size")


def _check_methods(component: Component, extension: StepExtension) -> None:
    """Raise ``PluginError`` for a method that cannot be called; warn of one of a phase that the extension lacks."""
    for phase in PHASES:
        if isinstance(extension, phase):
            for name, problem in signature_problems(extension, phase):
                raise PluginError(f"{component}: {type(extension).__name__}.{name}() {problem}")
        elif methods := uncalled_methods(type(extension), phase):
            logger.warning(
                "%s: %s has %s and does not inherit from %s, so the engine never calls it",
                component,
                type(extension).__name__,
                ", ".join(methods),
                phase.__name__,
            )


def _refuse_unserved_states(resolved: Resolved, points: ExtensionPoints) -> None:
    """Raise ``ConfigError`` if the model keeps states of sequences, and no extension owns any."""
    if resolved.states and not points.cache.states:
        raise ConfigError(
            f"{resolved.choices['model'].component} keeps states of sequences besides keys and values, and no step "
            "extension that serves these is loaded; the built-in one, 'recurrent-state', is blocked or not installed"
        )


def _refusals(built: Iterable[tuple[Component, StepExtension]]) -> dict[str, str]:
    """Return the request fields that no extension serves, or that one refuses, with the messages of the refusals.

    Raises ``ConfigError`` if two extensions serve the same field.
    """
    served: dict[str, Component] = {}
    refused: dict[str, str] = {}
    for component, extension in built:
        refused |= extension.refusals
        for name in component.spec_as(StepExtensionSpec).serves:
            if (other := served.setdefault(name, component)) is not component:
                raise ConfigError(f"{other} and {component} serve the same request field {name!r}; block one of them")
    why = "no step extension that serves this field of requests is loaded; it is blocked or not installed"
    unserved = EXTENSION_FIELDS.keys() - served.keys()
    return {name: f"{name}: {why} ({EXTENSION_FIELDS[name]!r} serves it)" for name in sorted(unserved)} | refused


def refuse_unserved_options(config: EngineConfig, loaded: Iterable[str]) -> None:
    """Raise ``ConfigError`` for an option that was set and that only an extension serves that is not loaded."""
    names = set(loaded)
    for path, value, default, metadata in _options(config):
        extension = metadata.get(EXTENSION)
        if extension is not None and extension not in names and value not in (default, metadata.get(OFF, default)):
            option = _written(metadata.get(FLAG, path), value)
            raise ConfigError(
                f"{option}: the step extension {extension!r}, which serves this option, is not loaded; it is blocked "
                "or not installed"
            )


def _written(flag: str, value: Any) -> str:
    """Write an option as on the command line."""
    if value is True:
        return flag
    return " ".join([flag, *map(str, value if isinstance(value, tuple) else (value,))])


def _options(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any, Mapping[Any, Any]]]:
    """Yield path, value, default and metadata of each option."""
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from _options(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", value, field.default, field.metadata
