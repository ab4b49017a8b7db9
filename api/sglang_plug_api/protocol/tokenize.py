"""Bodies of ``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from sglang_plug_api.answers.errors import WrongField

from .base import MAX_PROMPTS, Many, Name, RequestBody, Texts, TokenLists, Tokens
from .misplaced import TOKENIZE, Remedies
from .openai import MAX_MESSAGES, Effort, Message, NumericEffort, check_end_of_prompt, text_or_images
from .tools import ToolChoice, Tools

CONVERSATION_FIELDS = ("tools", "tool_choice", "reasoning_effort", "chat_template_kwargs", "continue_final_message")
"""Fields that a text without a chat template has no use for."""


class TokenizeBody(RequestBody):
    """``POST /tokenize``: a text, a list of texts, or a conversation that the chat template renders."""

    misplaced: ClassVar[Remedies] = TOKENIZE

    model: Name | None = None
    prompt: str | Texts | None = None
    messages: Many[Message] | None = Field(None, max_length=MAX_MESSAGES)
    add_special_tokens: bool = True
    """Add the special tokens that the model expects around a text; a chat template brings its own."""
    add_generation_prompt: bool | None = True
    """Null, which clients of SGLang may send, is the default."""
    continue_final_message: bool = False
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    reasoning_effort: Effort | NumericEffort | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = False

    @field_validator("messages")
    @classmethod
    def _check_messages(cls, messages: list[Message] | None) -> list[Message] | None:
        return None if messages is None else text_or_images(messages)

    @model_validator(mode="after")
    def _check_end(self) -> TokenizeBody:
        check_end_of_prompt(
            self,
            continue_final_message=self.continue_final_message,
            add_generation_prompt=self.add_generation_prompt,
        )
        return self

    @model_validator(mode="after")
    def _one_input(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        if isinstance(self.prompt, list) and len(self.prompt) > MAX_PROMPTS:
            raise ValueError(f"at most {MAX_PROMPTS} prompts are allowed, got {len(self.prompt)}")
        for name in CONVERSATION_FIELDS if self.messages is None else ():
            if getattr(self, name):
                raise WrongField(name, f"{name} has no effect on a text; send messages")
        return self


class DetokenizeBody(RequestBody):
    """``POST /detokenize``: tokens of one text, or of several."""

    model: Name | None = None
    tokens: Tokens | TokenLists
    skip_special_tokens: bool = True

    @model_validator(mode="after")
    def _bounded(self) -> DetokenizeBody:
        if self.is_batch and len(self.tokens) > MAX_PROMPTS:
            raise ValueError(f"at most {MAX_PROMPTS} lists of tokens are allowed, got {len(self.tokens)}")
        return self

    @property
    def is_batch(self) -> bool:
        """True if the response is a list."""
        return bool(self.tokens) and isinstance(self.tokens[0], list)
