"""Choosing a drafter, and building the speculation that asks it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from sglang_plug.attribution import described
from sglang_plug.config import AUTO, NO_SPECULATION, ConfigError, EngineConfig
from sglang_plug.drafting import Drafter
from sglang_plug.plugins import Component, Facts, Plugins
from sglang_plug.recurrent import StateShape

from .speculation import Speculation

if TYPE_CHECKING:
    from .resolve import Resolved

STEP_TOKENS = {"cpu": 16}
ACCELERATOR_STEP_TOKENS = 64
"""Most tokens of a step with drafts, by device: up to about so many, a step costs little more than one token."""


def choose_drafter(
    config: EngineConfig, plugins: Plugins, facts: Facts, *, generates: bool, states: Sequence[StateShape] = ()
) -> tuple[Component, str] | None:
    """The drafter and why it is that one; ``None`` if nothing is to be guessed.

    Names of algorithms may be in capitals. Raises ``ConfigError`` for one that nobody declares, or where nothing is
    generated, or the model has recurrent ``states``.
    """
    unable = None if generates else "there is nothing to guess, the model does not generate"
    if states:
        unable = "the model's recurrent states cannot be taken back from tokens that were guessed wrongly"
    name = config.speculative.algorithm
    if name == AUTO:
        chosen = plugins.choose("drafter", facts) if unable is None else None
        return None if chosen is None else (plugins.get("drafter", chosen), f"chosen for {facts.device}")
    if name.lower() == NO_SPECULATION:
        return None
    if unable is not None:
        raise ConfigError(f"--speculative-algorithm {name}: {unable}")
    known = plugins.names("drafter")
    return plugins.get("drafter", name if name in known else name.lower()), "named by the configuration"


def build_speculation(resolved: Resolved) -> Speculation | None:
    """What plans drafts, if a drafter was chosen."""
    if "drafter" not in resolved.choices:
        return None
    component = resolved.choices["drafter"].component
    return Speculation(
        resolved.make("drafter", Drafter),
        name=str(component),
        most=resolved.config.speculative.num_draft_tokens,
        step_tokens=_step_tokens(resolved),
        vocabulary=resolved.vocab_size,
        describe=partial(described, components=(component,)),
    )


def sampled_rows(resolved: Resolved) -> int:
    """Most tokens that are sampled in one step, drafts included."""
    return max(resolved.max_running, _step_tokens(resolved) if "drafter" in resolved.choices else 0)


def _step_tokens(resolved: Resolved) -> int:
    return resolved.config.speculative.step_tokens or STEP_TOKENS.get(resolved.device.type, ACCELERATOR_STEP_TOKENS)
