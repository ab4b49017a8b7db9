"""Owners of routes: no plugin's route may answer in the place of another plugin's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter
from starlette.routing import compile_path

from sglang_plug import ConfigError
from sglang_plug.plugins.registry import Component

from .plugin_routes import plugin_routes

PARAMETER = re.compile(r"\{[^}]*\}")
SAMPLE = "0"
"""A value that nearly every kind of path parameter accepts."""


@dataclass(frozen=True, slots=True)
class RouteOwner:
    """A path that a component answers for some methods; a mounted application has all methods and all paths below."""

    component: Component
    path: str
    methods: frozenset[str]
    mounted: bool

    def takes(self, method: str, path: str) -> bool:
        """Return True if it answers a call of ``path``."""
        pattern, _, _ = compile_path(f"{self.path.rstrip('/')}/{{below:path}}" if self.mounted else self.path)
        return (self.mounted or method in self.methods) and pattern.match(path) is not None


def route_owners(router: APIRouter, component: Component) -> list[RouteOwner]:
    """Return the routes of a component's router, nested routers included."""
    return [
        RouteOwner(component, route.path, route.methods, route.is_mounted)
        for route in plugin_routes(router)
        if route.methods or route.is_mounted
    ]


def refuse_clashes(owners: Sequence[RouteOwner]) -> None:
    """Raise ``ConfigError`` if two components own one call, or a pattern of one matches a later path of another.

    ``owners`` are in the order in which the application matches them.
    """
    for index, owner in enumerate(owners):
        sample = PARAMETER.sub(SAMPLE, owner.path)
        for method in sorted(owner.methods):
            for earlier in owners[:index]:
                if earlier.component is not owner.component and earlier.takes(method, sample):
                    raise ConfigError(_clash(method, owner, earlier))


def _clash(method: str, owner: RouteOwner, earlier: RouteOwner) -> str:
    remedy = f"block one with --block-plugin route:{owner.component.spec.name}"
    if PARAMETER.sub("{}", earlier.path) == PARAMETER.sub("{}", owner.path):
        return f"{method} {owner.path} is claimed by {earlier.component} and by {owner.component}; {remedy}"
    return (
        f"{method} {owner.path} of {owner.component} would be answered by {earlier.path} of {earlier.component}; "
        f"{remedy}, or route:{earlier.component.spec.name}"
    )
