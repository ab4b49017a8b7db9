"""Prefix caches: a radix tree of pages, and no cache."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import Facts, PrefixCacheSpec, hookimpl


@hookimpl
def register_cache_policies() -> Iterator[PrefixCacheSpec]:
    yield PrefixCacheSpec(
        name="radix",
        target="sglang_plug_backends.prefix_cache.radix:RadixCache",
        summary="shares every common prefix, in a radix tree of pages",
    )
    yield PrefixCacheSpec(
        name="none",
        target="sglang_plug_backends.prefix_cache.none:NoCache",
        summary="no prefix cache: every prompt is computed in full",
    )


@hookimpl(trylast=True)
def choose_component(kind: str, facts: Facts) -> str | None:
    return "radix" if kind == "prefix-cache" else None
