"""Declarations of a plugin's module: finding its hooks, calling each once, and reporting what is wrong."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from sglang_plug.config import ConfigError
from sglang_plug.system.hints import nearest_names

from . import hookspecs
from .spec import Spec

DECLARING = "register_"
"""Prefix of the hooks that return specs."""


class DeclarationError(ConfigError):
    """A plugin's module violates the plugin API; the message says what to write instead."""


@functools.cache
def hook_names() -> tuple[str, ...]:
    """Return the names of all hooks, in life-cycle order."""
    marker = f"{hookspecs.hookspec.project_name}_spec"
    return tuple(name for name, value in vars(hookspecs).items() if hasattr(value, marker))


@functools.cache
def hook_arguments(hook: str) -> tuple[str, ...]:
    """Return the names of the arguments that a hook is called with."""
    return tuple(inspect.signature(getattr(hookspecs, hook)).parameters)


@functools.cache
def spec_types(hook: str) -> tuple[type[Spec], ...]:
    """Return the specs that a ``register_*`` hook may return, from its annotation."""
    (item,) = typing.get_args(typing.get_type_hints(getattr(hookspecs, hook))["return"])
    return typing.get_args(item) or (item,)


def check_module(module: ModuleType) -> None:
    """Raise ``DeclarationError`` for another API version, an unknown hook, a wrong argument or a missing decorator."""
    _check_version(getattr(module, "api_version", hookspecs.API_VERSION))
    known = hook_names()
    for name, function in _implementations(module):
        optional = _options(function).get("optionalhook")
        if name in known:
            _check_arguments(name, function)
        elif not optional:
            raise DeclarationError(f"implements unknown hook {name!r}; {nearest_names(name, known, 'hook')}")
    for name in known:
        own = vars(module).get(name)
        if inspect.isfunction(own) and own.__module__ == module.__name__ and not _options(own):
            raise DeclarationError(f"defines {name}() without @hookimpl, so it would never be called; decorate it")


def implements_runtime_hooks(module: ModuleType) -> bool:
    """Report whether a module implements a hook that is called later, which no ``register_*`` hook is."""
    return not all(name.startswith(DECLARING) for name, _ in _implementations(module))


def declared_specs(module: ModuleType) -> Iterator[Spec]:
    """Yield the specs of a module's ``register_*`` hooks. Raises ``DeclarationError`` for anything else."""
    for name, function in _implementations(module):
        if not name.startswith(DECLARING):
            continue
        expected = spec_types(name)
        names = " or ".join(spec_type.__name__ for spec_type in expected)
        specs = function()
        if not isinstance(specs, Iterable):
            raise DeclarationError(f"{name}() must return a list of {names} or yield them, not {type(specs).__name__}")
        for spec in specs:
            if not isinstance(spec, expected):
                raise DeclarationError(f"{name}() returned {spec!r}, which is not a {names}")
            yield spec


def _check_version(version: Any) -> None:
    if version == hookspecs.API_VERSION and isinstance(version, int):
        return
    text = f"needs plugin API {version!r}, this is API {hookspecs.API_VERSION}"
    if not isinstance(version, int):
        raise DeclarationError(f"{text}; api_version must be a whole number")
    older = version < hookspecs.API_VERSION
    raise DeclarationError(f"{text}; install {'a newer version of the plugin' if older else 'a newer sglang-plug'}")


def _check_arguments(name: str, function: Callable[..., Any]) -> None:
    allowed = hook_arguments(name)
    parameters = inspect.signature(function).parameters.values()
    extra = [
        parameter.name
        for parameter in parameters
        if parameter.name not in allowed and parameter.default is parameter.empty
    ]
    if extra:
        accepted = f"only: {', '.join(allowed)}" if allowed else "no arguments"
        raise DeclarationError(f"{name}() asks for {', '.join(map(repr, extra))}, but is given {accepted}")


def _implementations(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, value in list(vars(module).items()):
        if options := _options(value):
            yield options.get("specname") or name, value


def _options(function: Any) -> dict[str, Any]:
    """Return the options that ``@hookimpl`` stored on a function; empty without it."""
    options = getattr(function, f"{hookspecs.hookimpl.project_name}_impl", None)
    return options if isinstance(options, dict) else {}
