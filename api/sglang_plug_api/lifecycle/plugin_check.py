"""Checks of a plugin's components: load each one and report violations of its contract."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sglang_plug.config import ConfigError
from sglang_plug.plugins.attribution import declaration_problem, signature_problems
from sglang_plug.plugins.registry import Component, import_target
from sglang_plug.plugins.request_fields import ComponentRequestFields
from sglang_plug.plugins.settings import is_settings_class, settings_fields

CONTRACTS = {
    "model": "sglang_plug.contracts.model.model:Model",
    "attention": "sglang_plug.contracts.model.attention:AttentionBackend",
    "prefix-cache": "sglang_plug.contracts.serving.cache:PrefixCache",
    "grammar": "sglang_plug.contracts.text.grammar:GrammarBackend",
    "tool-parser": "sglang_plug.contracts.text.parsers:OutputParser",
    "reasoning-parser": "sglang_plug.contracts.text.parsers:OutputParser",
    "observer": "sglang_plug.contracts.serving.observer:Observer",
    "executor": "sglang_plug.contracts.serving.executor:Executor",
    "logits-processor": "sglang_plug.contracts.serving.logits_processor:LogitsProcessor",
    "drafter": "sglang_plug.contracts.serving.drafting:Drafter",
    "kv-store": "sglang_plug.contracts.serving.kv_store:KVStore",
}
"""Maps a kind to the class that a target must be a subclass of."""
METHODS = {
    "eviction": ("eviction_priority",),
    "schedule": ("order",),
    "routing": ("choose",),
    "command": ("arguments", "run"),
}
"""Maps a kind to the methods that a target must have."""
PROTOCOLS = {
    "eviction": "sglang_plug.contracts.serving.cache:EvictionPolicy",
    "schedule": "sglang_plug.contracts.serving.scheduling:SchedulePolicy",
    "routing": "sglang_plug.contracts.serving.routing:RoutingPolicy",
}
"""Maps a kind to the protocol that an instance of a target must implement."""
KERNELS = "sglang_plug.contracts.model.kernels:Kernels"


def check_component(component: Component) -> list[str]:
    """Return the problems of a component that is available here: its target, its contract, its settings."""
    problems: list[str] = []
    for check in (_check_target, _check_settings, _check_request_fields):
        try:
            problems += check(component)
        except ConfigError as error:
            problems.append(str(error))
        except Exception as error:  # a plugin's own code runs here
            problems.append(f"{component}: {type(error).__name__}: {error}")
    return list(dict.fromkeys(problems))


def settings_of(component: Component) -> list[tuple[str, str, str]]:
    """Return ``(name, type, default)`` of every setting; the default is empty where a value must be given.

    Raises what importing the settings class raises.
    """
    if component.spec.settings is None:
        return []
    fields = settings_fields(import_target(component.spec.settings))
    return [(item.name, item.type, "" if item.required else repr(item.default)) for item in fields]


def _check_target(component: Component) -> Iterator[str]:
    kind, where = component.spec.kind, component.spec.target
    base = import_target(CONTRACTS[kind]) if kind in CONTRACTS else None
    target = component.load(base)
    for name in METHODS.get(kind, ()):
        if not callable(getattr(target, name, None)):
            yield f"{component}: {where!r} has no method {name!r}"
    contract = base or (import_target(PROTOCOLS[kind]) if kind in PROTOCOLS else None)
    if contract is not None and isinstance(target, type):
        for name, reason in signature_problems(target, contract):
            yield f"{component}: {name}() of {where!r} {reason}"
    if missing := sorted(getattr(target, "__abstractmethods__", ())):
        yield f"{component}: {where!r} does not define {', '.join(missing)}"
    if (problem := declaration_problem(component, target)) is not None:
        yield problem
    if kind == "step-extension":
        yield from _check_extension_methods(component)
    if kind == "kernels":
        yield from _check_kernels(component, target)
    elif kind not in METHODS and not callable(target):
        yield f"{component}: {where!r} cannot be called"


def _check_extension_methods(component: Component) -> Iterator[str]:
    from sglang_plug.plugins.extension_methods import extension_classes, extension_problems  # needs torch

    for extension in extension_classes(component):
        yield from (f"{component}: {problem}" for problem in extension_problems(extension))


def _check_kernels(component: Component, target: Any) -> Iterator[str]:
    contract = import_target(KERNELS)
    kernels = target
    if callable(target) and not isinstance(target, contract):
        if not _can_be_made(component):
            return
        kernels = target(*component.settings_arguments())
    if not isinstance(kernels, contract):
        yield f"{component}: {component.spec.target!r} is not a Kernels, but {type(kernels).__name__}"


def _check_settings(component: Component) -> Iterator[str]:
    if component.spec.settings is None:
        return
    kind = import_target(component.spec.settings)
    if not is_settings_class(kind):
        yield f"{component}: settings {component.spec.settings!r} must be a dataclass or a msgspec.Struct"
        return
    if _can_be_made(component):
        component.settings()


def _check_request_fields(component: Component) -> Iterator[str]:
    ComponentRequestFields.of(component)  # raises what is wrong
    yield from ()


def _can_be_made(component: Component) -> bool:
    """Return False if a setting without a default was not given: then there is nothing to check."""
    kind = None if component.spec.settings is None else import_target(component.spec.settings)
    if not is_settings_class(kind):
        return True  # there is no setting; or making the component reports the problem
    return {item.name for item in settings_fields(kind) if item.required} <= component.raw_settings.keys()
