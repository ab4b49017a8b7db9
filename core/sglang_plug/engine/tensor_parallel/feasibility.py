"""Checks whether ranks can share a model, and chooses the executor that starts them."""

from __future__ import annotations

from sglang_plug.config import AUTO, ConfigError, EngineConfig
from sglang_plug.contracts.model.attention import AttentionShape
from sglang_plug.plugins.hookspecs import Facts
from sglang_plug.plugins.registry import Component, PluginError, Plugins
from sglang_plug.plugins.specs import ModelSpec


def of_rank(shape: AttentionShape, model: Component, config: EngineConfig) -> AttentionShape:
    """Return one rank's part of the model's heads. Raises ``ConfigError`` if ranks cannot share the model."""
    size = config.parallel.tp_size
    if size < 1:
        raise ConfigError(f"--tp-size must be at least 1, got {size}")
    if size == 1:
        return shape
    if not model.spec_as(ModelSpec).parallel:
        raise ConfigError(f"--tp-size {size}: several ranks cannot share {model}; leave it out, or at 1")
    return shape.of_rank(size)


def choose_executor(config: EngineConfig, plugins: Plugins, facts: Facts) -> tuple[Component, str] | None:
    """Choose the executor that starts the ranks, with a reason; ``None`` for a single rank. Raises ``PluginError``."""
    name = config.parallel.executor
    if config.parallel.tp_size == 1:
        if name != AUTO:
            plugins.get("executor", name)  # report a typo although no executor is needed
        return None
    component = plugins.resolve("executor", name, facts)
    if missing := component.unavailable():
        raise PluginError(f"{component} is unavailable: {missing}")
    return component, "named by the configuration" if name != AUTO else f"chosen for {facts.device}"
