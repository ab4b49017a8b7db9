"""The choice of a drafter, and the construction of the extension that asks it."""

from __future__ import annotations

from functools import partial

from sglang_plug import AUTO, Component, ConfigError, Drafter, ExtensionContext

from .extension import Speculation

NO_SPECULATION = "none"
"""``--speculative-algorithm`` of a server without draft tokens."""
STEP_TOKENS = {"cpu": 16}
ACCELERATOR_STEP_TOKENS = 64
"""Maximum number of tokens of a step with drafts, by device: so many cost little more than one token."""


def build(context: ExtensionContext) -> Speculation | None:
    """Return the extension if a drafter is chosen."""
    choice = choose_drafter(context)
    if choice is None:
        return None
    component, reason = choice
    options = context.config.speculative
    return Speculation(
        context.make(component, reason, Drafter),
        name=str(component),
        max_draft_tokens=options.num_draft_tokens,
        step_tokens=options.step_tokens or STEP_TOKENS.get(context.facts.device, ACCELERATOR_STEP_TOKENS),
        vocabulary=context.vocab_size,
        describe=partial(_describe, context, component),
    )


def choose_drafter(context: ExtensionContext) -> tuple[Component, str] | None:
    """Return the drafter and the reason for it; ``None`` if no tokens are drafted.

    Names of algorithms may be in capitals. Raises ``ConfigError`` for a name that no plugin declares, and where the
    model does not generate or has state that cannot be reset.
    """
    config, plugins, facts = context.config, context.plugins, context.facts
    unable = None if "generate" in context.tasks else "there is nothing to guess, the model does not generate"
    if context.states:
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


def _describe(context: ExtensionContext, component: Component, error: BaseException) -> str:
    return context.describe(error, component)
