"""Routing policies: which replica serves a request."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import RoutingSpec, hookimpl


@hookimpl
def register_routing_policies() -> Iterator[RoutingSpec]:
    yield RoutingSpec(
        name="round-robin", target=f"{__name__}.policies:RoundRobin", summary="one replica after the other"
    )
    yield RoutingSpec(
        name="least-tokens",
        target=f"{__name__}.policies:LeastTokens",
        summary="the replica with the fewest tokens of requests in flight",
    )
    yield RoutingSpec(
        name="prefix-affinity",
        target=f"{__name__}.prefix_affinity:PrefixAffinity",
        settings=f"{__name__}.prefix_affinity:AffinitySettings",
        summary="the replica that computed the longest prefix of the prompt, unless it has far more load",
    )


@hookimpl(trylast=True)
def choose_component(kind: str) -> str | None:
    return "prefix-affinity" if kind == "routing" else None
