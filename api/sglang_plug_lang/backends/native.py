"""Programs over ``/generate``, however it is reached."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol

from sglang_plug_lang.choices import ChoicesMethod, Decision
from sglang_plug_lang.ir import GenerationOptions
from sglang_plug_lang.templates import ChatTemplate

from .base import Completion, Prompt
from .scoring import HEALED_TOKENS, scored_choices

NOTHING_NEW: Mapping[str, Any] = {"max_new_tokens": 0, "temperature": 0.0}
"""Sampling parameters of a request that only wants log-probabilities of the prompt, or the prompt cached."""


class Transport(Protocol):
    """The two ways to call ``/generate``. Failures are ``BackendError``."""

    def generate(self, body: dict[str, Any]) -> Any:
        """One answer, or a list of them for a batch."""

    def events(self, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        """Answers with all the text so far."""


class NativeGeneration:
    """The questions of the interpreter as bodies of ``/generate``; backends that have one derive from it."""

    def __init__(self, transport: Transport, template: ChatTemplate) -> None:
        self._transport, self.chat_template = transport, template

    def generate(self, prompt: Prompt, options: GenerationOptions) -> Completion:
        """The whole continuation."""
        answer = self._transport.generate(self._body(prompt, options))
        first, *others = answer if isinstance(answer, list) else [answer]
        return Completion(first["text"], first["meta_info"], tuple(one["text"] for one in others))

    def stream(self, prompt: Prompt, options: GenerationOptions) -> Generator[Completion, None, None]:
        """The continuation in pieces."""
        seen = 0
        for event in self._transport.events(self._body(prompt, options)):
            text = event["text"]
            yield Completion(text[seen:], event["meta_info"])
            seen = len(text)

    def select(self, prompt: Prompt, choices: Sequence[str], method: ChoicesMethod, temperature: float) -> Decision:
        """The likeliest choice: first the prompt alone, which fills the cache; then all choices in one batch."""
        images = {"image_data": list(prompt.images)} if prompt.images else {}
        nothing_new = {**NOTHING_NEW, "temperature": temperature}
        prompt_len = 0
        if prompt.text:
            answer = self._transport.generate({"text": prompt.text, "sampling_params": nothing_new, **images})
            prompt_len = answer["meta_info"]["prompt_tokens"]
        answers = self._transport.generate(
            {
                "text": [prompt.text + choice for choice in choices],
                "sampling_params": nothing_new,
                "return_logprob": True,
                "logprob_start_len": max(prompt_len - HEALED_TOKENS, 0),
                "return_text_in_logprobs": True,
                **({"image_data": [list(prompt.images)] * len(choices)} if images else {}),
            }
        )
        scored = scored_choices(choices, answers, prompt_len)
        if method.needs_unconditional:
            rows = self._unconditional([list(one.tokens) for one in scored])
            scored = [dataclasses.replace(one, unconditional=row) for one, row in zip(scored, rows, strict=True)]
        return method.decide(scored)

    def _unconditional(self, tokens: list[list[int]]) -> list[tuple[float, ...]]:
        """Log-probabilities without the prompt; the first token's, which has none, counts as 0."""
        answers = self._transport.generate(
            {
                "input_ids": tokens,
                "sampling_params": dict(NOTHING_NEW),
                "return_logprob": True,
                "logprob_start_len": 0,
            }
        )
        return [tuple(one[0] or 0.0 for one in answer["meta_info"]["input_token_logprobs"]) for answer in answers]

    def _body(self, prompt: Prompt, options: GenerationOptions) -> dict[str, Any]:
        sampling = options.sampling_params()
        if prompt.role is not None and self.chat_template.stop:
            given = sampling.get("stop") or []
            sampling["stop"] = [*([given] if isinstance(given, str) else given), *self.chat_template.stop]
        body = {"text": prompt.text, "sampling_params": sampling, **options.result_fields()}
        if prompt.images:
            body["image_data"] = list(prompt.images)
        return body
