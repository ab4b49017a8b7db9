"""Programs over ``/generate``, independent of how it is called."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol

from sglang_plug_lang.choices import ChoicesMethod, Decision
from sglang_plug_lang.ir import GenerationOptions
from sglang_plug_lang.templates import ChatTemplate

from .base import Completion, Prompt, TokenUsage
from .scoring import HEALED_TOKENS, scored_choices

NO_GENERATION: Mapping[str, Any] = {"max_new_tokens": 0, "temperature": 0.0}
"""Sampling parameters of a request that only needs the prompt cached, or its log-probabilities."""


class Transport(Protocol):
    """A way to call ``/generate``. Failures are ``BackendError``."""

    def generate(self, body: dict[str, Any]) -> Any:
        """Return one response, or a list of them for a batch."""

    def events(self, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        """Yield responses with all the text so far."""


class NativeGeneration:
    """Sends the interpreter's requests as bodies of ``/generate``; base class of backends that have it."""

    def __init__(self, transport: Transport, template: ChatTemplate) -> None:
        self._transport, self.chat_template = transport, template
        self.token_usage = TokenUsage()

    def get_chat_template(self) -> ChatTemplate:
        """Return the chat template."""
        return self.chat_template

    def cache_prefix(self, prefix_str: str) -> None:
        """Fill the prefix cache with a text."""
        self._send({"text": prefix_str, "sampling_params": dict(NO_GENERATION)})

    def generate(self, prompt: Prompt, options: GenerationOptions) -> Completion:
        """Return the whole continuation."""
        answer = self._send(self._body(prompt, options))
        first, *others = answer if isinstance(answer, list) else [answer]
        return Completion(first["text"], first["meta_info"], tuple(sample["text"] for sample in others))

    def stream(self, prompt: Prompt, options: GenerationOptions) -> Generator[Completion, None, None]:
        """Yield the continuation in pieces."""
        emitted, meta_info = 0, {}
        for event in self._transport.events(self._body(prompt, options)):
            text, meta_info = event["text"], event["meta_info"]
            yield Completion(text[emitted:], meta_info)
            emitted = len(text)
        self.token_usage.add(meta_info)

    def select(self, prompt: Prompt, choices: Sequence[str], method: ChoicesMethod, temperature: float) -> Decision:
        """Return the likeliest choice: send the prompt alone, which fills the cache, then all choices in one batch."""
        images = {"image_data": list(prompt.images)} if prompt.images else {}
        no_generation = {**NO_GENERATION, "temperature": temperature}
        prompt_len = 0
        if prompt.text:
            answer = self._send({"text": prompt.text, "sampling_params": no_generation, **images})
            prompt_len = answer["meta_info"]["prompt_tokens"]
        answers = self._send(
            {
                "text": [prompt.text + choice for choice in choices],
                "sampling_params": no_generation,
                "return_logprob": True,
                "logprob_start_len": max(prompt_len - HEALED_TOKENS, 0),
                "return_text_in_logprobs": True,
                **({"image_data": [list(prompt.images)] * len(choices)} if images else {}),
            }
        )
        scored = scored_choices(choices, answers, prompt_len)
        if method.needs_unconditional:
            rows = self._unconditional([list(choice.tokens) for choice in scored])
            pairs = zip(scored, rows, strict=True)
            scored = [dataclasses.replace(choice, unconditional=row) for choice, row in pairs]
        return method.decide(scored)

    def _unconditional(self, tokens: list[list[int]]) -> list[tuple[float, ...]]:
        """Return log-probabilities without the prompt; the first token has none, which counts as 0."""
        answers = self._send(
            {
                "input_ids": tokens,
                "sampling_params": dict(NO_GENERATION),
                "return_logprob": True,
                "logprob_start_len": 0,
            }
        )
        return [tuple(entry[0] or 0.0 for entry in answer["meta_info"]["input_token_logprobs"]) for answer in answers]

    def _send(self, body: dict[str, Any]) -> Any:
        answer = self._transport.generate(body)
        for output in answer if isinstance(answer, list) else [answer]:
            self.token_usage.add(output.get("meta_info") or {})
        return answer

    def _body(self, prompt: Prompt, options: GenerationOptions) -> dict[str, Any]:
        sampling = options.sampling_params()
        if prompt.role is not None and self.chat_template.stop:
            stop = sampling.get("stop") or []
            sampling["stop"] = [*([stop] if isinstance(stop, str) else stop), *self.chat_template.stop]
        body = {"text": prompt.text, "sampling_params": sampling, **options.result_fields()}
        if prompt.images:
            body["image_data"] = list(prompt.images)
        return body
