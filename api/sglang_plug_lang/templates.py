"""Chat templates: conversion of messages to the text format that a model was trained on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

SYSTEM, USER, ASSISTANT = "system", "user", "assistant"


@dataclass(frozen=True)
class ChatTemplate:
    """Text before and after each message. Special tokens that a tokenizer adds automatically are left out."""

    name: str
    affixes: Mapping[str, tuple[str, str]]
    """Maps a role to the text before and after its messages."""
    default_system_prompt: str | None = None
    """System prompt that is added if a conversation begins with another role."""
    user_after_system: str | None = None
    """Text before a user message right after a system message, where the two share one turn."""
    stop: tuple[str, ...] = ()
    """Text at which a message ends."""
    image_token: str = "<image>"

    def before(self, role: str, previous: str | None) -> str:
        """Return the text before a message; ``previous`` is the role of the message before it."""
        if role == USER and previous == SYSTEM and self.user_after_system is not None:
            return self.user_after_system
        return self._affix(role)[0]

    def after(self, role: str) -> str:
        """Return the text after a message."""
        return self._affix(role)[1]

    def _affix(self, role: str) -> tuple[str, str]:
        if role not in self.affixes:
            raise ValueError(f"chat template {self.name!r} has no role {role!r}: it has {', '.join(self.affixes)}")
        return self.affixes[role]


def _roles(system: tuple[str, str], user: tuple[str, str], assistant: tuple[str, str]) -> dict[str, tuple[str, str]]:
    return {SYSTEM: system, USER: user, ASSISTANT: assistant}


def _marked(begin: str, end: str) -> dict[str, tuple[str, str]]:
    """Return the same marks for every role, with the role's name in the first mark."""
    return {role: (begin.format(role), end) for role in (SYSTEM, USER, ASSISTANT)}


_CHATML = _marked("<|im_start|>{}\n", "<|im_end|>\n")
_HELPFUL = "You are a helpful assistant."

TEMPLATES: Mapping[str, ChatTemplate] = {
    template.name: template
    for template in (
        ChatTemplate("default", _roles(("SYSTEM: ", "\n"), ("USER: ", "\n"), ("ASSISTANT: ", "\n")), stop=("\nUSER:",)),
        ChatTemplate("chatml", _CHATML, stop=("<|im_end|>",)),
        ChatTemplate("qwen", _CHATML, _HELPFUL, stop=("<|im_end|>",)),
        ChatTemplate(
            "qwen2-vl",
            _CHATML,
            _HELPFUL,
            stop=("<|im_end|>",),
            image_token="<|vision_start|><|image_pad|><|vision_end|>",
        ),
        ChatTemplate(
            "llama-3-instruct",
            _marked("<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>"),
            stop=("<|eot_id|>",),
            image_token="<|image|>",
        ),
        ChatTemplate(
            "llama-2-chat",
            _roles(("[INST] <<SYS>>\n", "\n<</SYS>>\n\n"), ("[INST] ", " [/INST]"), (" ", " </s><s>")),
            user_after_system="",
            stop=("</s>",),
        ),
        ChatTemplate(
            "mistral",
            _roles(("[INST] ", "\n\n"), ("[INST] ", "[/INST]"), (" ", "</s>")),
            user_after_system="",
            stop=("</s>",),
            image_token="[IMG]",
        ),
        ChatTemplate(
            "gemma-it",
            _roles(
                ("<start_of_turn>user\n", "\n\n"),
                ("<start_of_turn>user\n", "<end_of_turn>\n"),
                ("<start_of_turn>model\n", "<end_of_turn>\n"),
            ),
            user_after_system="",
            stop=("<end_of_turn>",),
            image_token="<start_of_image>",
        ),
        ChatTemplate("vicuna", _roles(("", " "), ("USER: ", " "), ("ASSISTANT: ", "</s>")), stop=("</s>", "USER:")),
    )
}

_PATTERNS = (
    (r"qwen.*vl", "qwen2-vl"),
    (r"qwen|sglang-plug-demo", "qwen"),
    (r"llama-?3.*instruct", "llama-3-instruct"),
    (r"llama-?2.*chat", "llama-2-chat"),
    (r"mi[sx]tral.*instruct|mistral-(small|large|nemo)", "mistral"),
    (r"gemma.*-it\b", "gemma-it"),
    (r"vicuna|llava-v1\.5", "vicuna"),
    (r"chatml|hermes|smollm", "chatml"),
)


Recognizer = Callable[[str], str | None]
"""Function that returns the name of the chat template of a model's path, or ``None`` if it does not know the model."""


class TemplateRegistry:
    """The chat templates of this process: the built-in ones, and those that a program registers."""

    def __init__(self) -> None:
        self._templates = dict(TEMPLATES)
        self._recognizers: list[Recognizer] = []

    def register(self, template: ChatTemplate) -> None:
        """Add a template. It replaces one of the same name for the backends that are created afterwards."""
        self._templates[template.name] = template

    def register_recognizer(self, recognizer: Recognizer) -> None:
        """Add a function that recognizes models. It is asked before those that were added earlier."""
        self._recognizers.insert(0, recognizer)

    def named(self, name: str) -> ChatTemplate:
        """Return the template of this name. Raises ``ValueError``, which lists the names, for an unknown one."""
        if name not in self._templates:
            raise ValueError(f"unknown chat template {name!r}: there are {', '.join(sorted(self._templates))}")
        return self._templates[name]

    def of_model(self, model_path: str) -> ChatTemplate:
        """Return the template for a model, recognized by its name or its folders' names; a plain one if unknown."""
        for recognizer in self._recognizers:
            if (name := recognizer(model_path)) is not None:
                return self.named(name)
        for part in reversed(re.split(r"[/\\]", model_path.lower())):
            for pattern, name in _PATTERNS:
                if re.search(pattern, part):
                    return self.named(name)
        return self.named("default")


registry = TemplateRegistry()
"""The templates that backends use."""
template_named, template_for = registry.named, registry.of_model
