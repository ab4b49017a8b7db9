from __future__ import annotations

import pytest

from sglang_plug import Facts, Plugins, PrefixCache


def test_auto_is_radix() -> None:
    assert Plugins.discover().resolve("prefix-cache", "auto", Facts()).spec.name == "radix"


@pytest.mark.parametrize("name", ["radix", "none"])
def test_targets_are_prefix_caches(name: str) -> None:
    assert issubclass(Plugins.discover().get("prefix-cache", name).load(PrefixCache), PrefixCache)
