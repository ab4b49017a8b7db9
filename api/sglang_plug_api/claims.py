"""Which component answers which calls: no plugin's route may answer in the place of another's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastapi import APIRouter
from starlette.routing import Mount, compile_path

from sglang_plug import ConfigError
from sglang_plug.plugins import Component

PARAMETER = re.compile(r"\{[^}]*\}")
SAMPLE = "0"
"""A value that path parameters of nearly every kind take."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A path that a component answers, by some methods; a mounted application has all of them, and all below."""

    component: Component
    path: str
    methods: frozenset[str]
    mounted: bool

    def takes(self, method: str, path: str) -> bool:
        """Whether it answers a call of ``path``."""
        pattern, _, _ = compile_path(f"{self.path.rstrip('/')}/{{below:path}}" if self.mounted else self.path)
        return (self.mounted or method in self.methods) and pattern.match(path) is not None


def claims_of(router: APIRouter, component: Component) -> list[Claim]:
    """What a component's router answers, routers within it included."""
    return list(_claims(router, component))


def _claims(router: APIRouter, component: Component) -> Iterator[Claim]:
    for route in router.routes:
        nested = getattr(route, "effective_route_contexts", None)  # of a router within, in recent FastAPI
        for one in [route] if nested is None else nested():
            shown = getattr(one, "starlette_route", None) or one
            mounted = isinstance(shown, Mount)
            methods = frozenset(getattr(shown, "methods", None) or ())
            if methods or mounted:
                yield Claim(component, getattr(shown, "path", ""), methods, mounted)


def refuse_clashes(claims: Sequence[Claim]) -> None:
    """Raise ``ConfigError`` if two components claim one call, or a pattern of one takes a path of another after it.

    ``claims`` are in the order in which they are asked.
    """
    for place, claim in enumerate(claims):
        sample = PARAMETER.sub(SAMPLE, claim.path)
        for method in sorted(claim.methods):
            for earlier in claims[:place]:
                if earlier.component is not claim.component and earlier.takes(method, sample):
                    raise ConfigError(_clash(method, claim, earlier))


def _clash(method: str, claim: Claim, earlier: Claim) -> str:
    remedy = f"block one with --block-plugin route:{claim.component.spec.name}"
    if PARAMETER.sub("{}", earlier.path) == PARAMETER.sub("{}", claim.path):
        return f"{method} {claim.path} is claimed by {earlier.component} and by {claim.component}; {remedy}"
    return (
        f"{method} {claim.path} of {claim.component} would be answered by {earlier.path} of {earlier.component}; "
        f"{remedy}, or route:{earlier.component.spec.name}"
    )
