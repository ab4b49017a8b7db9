"""Replacement for ``sglang.lang.chat_template``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto

from sglang_plug_lang import templates
from sglang_plug_lang.templates import SYSTEM, USER, registry

__all__ = [
    "ChatTemplate",
    "ChatTemplateStyle",
    "get_chat_template",
    "get_chat_template_by_model_path",
    "register_chat_template",
    "register_chat_template_matching_function",
]

get_chat_template = registry.named
get_chat_template_by_model_path = registry.of_model
register_chat_template = registry.register
register_chat_template_matching_function = registry.register_recognizer


class ChatTemplateStyle(Enum):
    """Where the system message is: before the first turn, or inside it."""

    PLAIN = auto()
    LLAMA2 = auto()


def ChatTemplate(
    name: str,
    default_system_prompt: str | None,
    role_prefix_and_suffix: Mapping[str, tuple[str, str]],
    stop_str: Sequence[str] = (),
    image_token: str = "<image>",
    audio_token: str = "<audio>",
    style: ChatTemplateStyle = ChatTemplateStyle.PLAIN,
) -> templates.ChatTemplate:
    """Return a chat template, described as SGLang describes it. ``audio_token`` has no effect: there is no audio."""
    affixes = {role: (before, after) for role, (before, after) in role_prefix_and_suffix.items()}
    shares_turn = style is ChatTemplateStyle.LLAMA2
    if shares_turn:
        before, after = affixes.get(SYSTEM, ("", ""))
        affixes[SYSTEM] = (affixes.get(USER, ("", ""))[0] + before, after)
    return templates.ChatTemplate(
        name,
        affixes,
        default_system_prompt,
        user_after_system="" if shares_turn else None,
        stop=tuple(stop_str),
        image_token=image_token,
    )
