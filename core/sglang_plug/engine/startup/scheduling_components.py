"""The components for scheduling and prefix caching, built before the weights are loaded."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sglang_plug.contracts.serving.cache import EvictionPolicy, NodeStats, PrefixCache
from sglang_plug.contracts.serving.scheduling import AccountingPolicy, PreemptivePolicy, SchedulePolicy
from sglang_plug.deprecation import warn_deprecated
from sglang_plug.engine.loading.resolve import Resolved
from sglang_plug.engine.scheduling.caller_accounting import CallerAccounting
from sglang_plug.engine.scheduling.checked_policy import CheckedPolicy
from sglang_plug.plugins.attribution import check_contract, make_with_settings

from .kv_sizing import check_pool_options


@dataclass(frozen=True, slots=True)
class SchedulingComponents:
    """The parts of a scheduler except the pools, whose size is known only later."""

    cache: PrefixCache
    policy: CheckedPolicy
    preemptive: PreemptivePolicy | None
    """The policy, if it is preemptive."""
    policy_name: str
    """The policy as errors name it."""
    accounting: CallerAccounting
    cache_description: str
    """The prefix cache and its eviction policy, as errors name them."""


def build_scheduling_components(resolved: Resolved) -> SchedulingComponents:
    """Construct the components early, so that an error shows in seconds and not after a large model is loaded.

    Raises ``ConfigError``, also for invalid options of the pool.
    """
    check_pool_options(resolved)
    eviction = _eviction_policy(resolved)
    component = resolved.choices["prefix-cache"].component
    arguments = resolved.config.cache.page_size, eviction, time.monotonic
    cache: PrefixCache = make_with_settings(component, *arguments, base=PrefixCache)
    scheduling, name = resolved.make("schedule", SchedulePolicy), str(resolved.choices["schedule"].component)
    options = resolved.config.schedule
    accounting: AccountingPolicy | None = _optional_part(resolved, scheduling, AccountingPolicy)
    preemptive: PreemptivePolicy | None = _optional_part(resolved, scheduling, PreemptivePolicy)
    return SchedulingComponents(
        cache,
        CheckedPolicy(scheduling, name),
        preemptive,
        name,
        CallerAccounting(accounting, preemptive, options.caller_weights),
        cache_description=f"{component}, evicting by {resolved.choices['eviction'].component}",
    )


def _optional_part(resolved: Resolved, policy: Any, contract: Any) -> Any:
    """Return the schedule policy if it implements the optional ``contract``; ``None`` if it has nothing of it.

    Raises ``PluginError`` if it has some of the methods only.
    """
    if not any(hasattr(policy, name) for name in vars(contract) if not name.startswith("_")):
        return None
    check_contract(resolved.choices["schedule"].component, policy, contract)
    return policy


class RenamedRank:
    """An adapter for eviction policies written when ``eviction_priority`` was called ``rank``."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    def eviction_priority(self, node: NodeStats) -> Any:
        """Return the policy's ``rank``; see ``EvictionPolicy.eviction_priority``."""
        return self._policy.rank(node)


def _eviction_policy(resolved: Resolved) -> EvictionPolicy:
    component = resolved.choices["eviction"].component
    policy: Any = resolved.make("eviction")
    if not hasattr(policy, "eviction_priority") and hasattr(policy, "rank"):
        warn_deprecated(f"{component}: rename rank() to eviction_priority()", owner=type(policy))
        policy = RenamedRank(policy)
    check_contract(component, policy, EvictionPolicy)
    checked: EvictionPolicy = policy
    return checked
