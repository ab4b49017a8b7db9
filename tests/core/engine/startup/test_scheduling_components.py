"""The components for scheduling and prefix caching, built before the weights are loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import ConfigError, EngineConfig, Plugins
from sglang_plug.config import CacheOptions, ModelOptions, PluginOptions, ScheduleOptions
from sglang_plug.engine.loading.resolve import resolve
from sglang_plug.engine.startup.scheduling_components import SchedulingComponents, build_scheduling_components

POLICIES = """
    @hookimpl
    def register_schedule_policies():
        yield ScheduleSpec(name="half", target=f"{__name__}:Half")

    @hookimpl
    def register_cache_policies():
        yield EvictionSpec(name="renamed", target=f"{__name__}:Renamed")
        yield EvictionSpec(name="empty", target=f"{__name__}:Empty")

    class Half:
        def order(self, waiting, match):
            return waiting

        def preempt(self, running, waiting, free_running_slots):
            return [], []

    class Renamed:
        def rank(self, node):
            return -node.hits

    class Empty:
        pass
"""
Build = Callable[..., SchedulingComponents]


@pytest.fixture
def build(install: Callable[..., Path]) -> Build:
    """Return ``build(policy, eviction)``, which builds the components for the demo model."""
    install("policies", POLICIES)
    plugins = Plugins.discover(PluginOptions())

    def make(policy: str = "fcfs", eviction: str = "lru") -> SchedulingComponents:
        config = EngineConfig(
            model=ModelOptions(device="cpu"),
            schedule=ScheduleOptions(policy=policy),
            cache=CacheOptions(eviction_policy=eviction),
        )
        return build_scheduling_components(resolve(config, plugins))

    return make


def test_the_components_are_named_in_errors(build: Build) -> None:
    components = build()
    assert components.policy_name.startswith("schedule 'fcfs' from ")
    assert (
        "prefix-cache " in components.cache_description
        and ", evicting by eviction 'lru' from " in components.cache_description
    )
    assert components.preemptive is None


def test_a_policy_that_shares_between_callers_also_preempts(build: Build) -> None:
    assert build("fair").preemptive is not None


def test_an_eviction_policy_with_the_earlier_name_of_its_method_is_used(build: Build) -> None:
    with pytest.warns(DeprecationWarning, match=r"rename rank\(\) to eviction_priority\(\)"):
        components = build(eviction="renamed")
    assert "eviction 'renamed' from policies 1.0" in components.cache_description


@pytest.mark.parametrize(
    ("options", "missing"), [({"eviction": "empty"}, "eviction_priority"), ({"policy": "half"}, "")]
)
def test_a_component_without_all_of_its_methods_is_refused(build: Build, options: dict[str, Any], missing: str) -> None:
    with pytest.raises(ConfigError, match=f"'{next(iter(options.values()))}' from policies 1.0.*{missing}"):
        build(**options)
