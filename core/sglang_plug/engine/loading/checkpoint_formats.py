"""Choosing the reader of a checkpoint and the loader of its weights, and opening the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sglang_plug.config import AUTO, ConfigError, EngineConfig
from sglang_plug.contracts.model.checkpoint import Checkpoint, CheckpointRequest
from sglang_plug.contracts.text.tokenizer import TokenizerSource
from sglang_plug.plugins.attribution import make_with_settings
from sglang_plug.plugins.choice import FLAGS
from sglang_plug.plugins.hookspecs import Facts
from sglang_plug.plugins.registry import Component, Plugins

NAMED = "named by the configuration"
DETECTED = "recognises the checkpoint"
READER, LOADER = "checkpoint", "weights"
INCIDENTAL = frozenset({"_name_or_path", "transformers_version"})
"""Fields of a checkpoint's configuration that determine nothing."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen component, and the reason for the choice."""

    component: Component
    reason: str
    note: str = ""
    """Text to append to the component's refusals: it names the components that were asked before and did not recognise
    the checkpoint."""

    def describe(self) -> dict[str, str]:
        """Return a description for ``/server_info`` and the log."""
        plugin = self.component.plugin
        return {
            "name": self.component.spec.name,
            "plugin": plugin.name,
            "distribution": plugin.distribution,
            "version": plugin.version,
            "reason": self.reason,
        }


def open_checkpoint(config: EngineConfig, plugins: Plugins, facts: Facts) -> tuple[Checkpoint, Choice, Choice]:
    """Open the checkpoint to serve; return it with its reader and the loader of its weights.

    Where none is named, they are those that recognise it, or else the plugins' choice. Raises ``ConfigError``; for a
    source that nobody recognises it lists who was asked.
    """
    model = config.model
    if model.load_format != AUTO:
        plugins.get(LOADER, model.load_format)  # before anything is read or fetched
    source = model_source(config, plugins, facts)
    request = CheckpointRequest(
        source=source, revision=model.revision, overrides=model.overrides, weights=model.load_format != "dummy"
    )
    facts = replace(facts, source=source, subjects={READER: request})
    reader = _choose(READER, model.checkpoint_format, plugins, facts)
    try:
        checkpoint: Checkpoint = make_with_settings(reader.component, request, contract=Checkpoint)
    except ConfigError as error:
        error.args = (f"{error}{reader.note}",)
        raise
    if not checkpoint.architecture:
        raise ConfigError(f"{checkpoint.path}/config.json names no architecture ('architectures')")
    facts = replace(facts, model=checkpoint.config, subjects={LOADER: checkpoint})
    loader = _choose(LOADER, model.load_format, plugins, facts)
    return checkpoint, reader, loader


def model_source(config: EngineConfig, plugins: Plugins, facts: Facts | None = None) -> str:
    """Return the model to serve: the named one, or else the plugins' choice."""
    if config.model.path != AUTO:
        return config.model.path
    source = plugins.choose("model-path", facts or Facts())
    if source is None:
        raise ConfigError("no model was named and no plugin offers one; add --model-path")
    return source


def tokenizer_source(config: EngineConfig, checkpoint: Checkpoint) -> TokenizerSource:
    """Return the argument of the engine's tokenizer, which renders no chats."""
    return TokenizerSource(path=Path(config.model.tokenizer_path or checkpoint.path), chats=False)


def _choose(kind: str, name: str, plugins: Plugins, facts: Facts) -> Choice:
    if name != AUTO:
        return Choice(plugins.get(kind, name), NAMED)
    if plugins.detect(kind, facts) is not None:
        return Choice(plugins.resolve(kind, AUTO, facts), DETECTED)
    note = f" (no {kind} component recognises it; tried: {plugins.tried(kind)}; {FLAGS[kind]} names one)"
    return Choice(plugins.resolve(kind, AUTO, facts), f"chosen for {facts.device}", note)


def config_fields(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the fields of a checkpoint's configuration, except ``INCIDENTAL`` ones."""
    config = checkpoint.config
    values = config.to_dict() if hasattr(config, "to_dict") else vars(config)
    return {name: value for name, value in values.items() if name not in INCIDENTAL}
