"""Fields that have an effect on other servers or routes but none here, and remedies for clients that send them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_plug_api.http.errors import WrongField

Remedies = Mapping[str, str]
"""Maps a field to its remedy."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_special_tokens": (True,),
    "beam_width": (1,),
    "best_of": (1,),
    "function_call": ("none",),
    "image": ({"context_compression": "auto"}, {"context_compression": "disabled"}),
    "modalities": (["text"],),
    "n": (1,),
    "verbosity": ("medium",),
}
"""Values of such fields that are accepted because they change nothing."""

EVERYWHERE: Remedies = {
    "guided_json": "use response_format with type json_schema",
    "guided_regex": "use regex",
    "guided_choice": "use regex with alternatives",
    "guided_grammar": "use ebnf",
    "guided_decoding_backend": "the grammar backend is chosen by the server",
    "guided_whitespace_pattern": "whitespace is bounded by the server",
    "structured_outputs": "use response_format, regex or ebnf",
    "chat_template": "templates in requests are refused; start the server with --chat-template",
    "use_beam_search": "beam search is not supported; use n with temperature",
    "beam_width": "beam search is not supported; use n with temperature",
    "length_penalty": "beam search is not supported",
    "bad_words": "use logit_bias",
    "allowed_token_ids": "use logit_bias",
    "prompt_logprobs": "use echo with logprobs on /v1/completions, or logprob_start_len on /generate",
    "custom_logit_processor": "code in requests is refused; install a plugin",
    "max_length": "use max_tokens (max_new_tokens on /generate)",
    "truncate_prompt_tokens": "shorten the prompt before sending it",
    "extra_body": "it is an argument of OpenAI's client; on the wire its keys stand at the top level",
}
"""Remedies for all bodies."""

ADAPTED: Remedies = {**EVERYWHERE, "lora_path": "name the adapter as model"}
"""Remedies for bodies that have a ``model`` and no field for an adapter."""

_SESSIONS = "sessions are not supported; send the whole conversation"
GENERATION: Remedies = {
    **EVERYWHERE,
    "max_output_tokens": "use max_tokens",
    "max_new_tokens": "use max_tokens",
    "min_new_tokens": "use min_tokens",
    "sampling_seed": "use seed",
    "sampling_params": "its keys stand at the top level here",
    "json_schema": "use response_format with type json_schema",
    "structural_tag": "use response_format with type structural_tag",
    "stop_regex": "use stop",
    "custom_params": "there is no custom logits processor",
    "return_hidden_states": "hidden states are not told",
    "return_token_ids": "use /generate",
    "session_params": _SESSIONS,
    "moderation": "nothing is moderated",
    "thinking_token_budget": "use max_tokens",
}
"""Remedies for chat and text completions."""

CHAT: Remedies = {
    **GENERATION,
    "functions": "use tools",
    "function_call": "use tool_choice",
    "audio": "there is no audio output",
    "modalities": "there is no output but text",
    "web_search_options": "nothing is searched; declare a function",
    "verbosity": "say in a message how long the answer is to be",
    "thinking": "use reasoning_effort or chat_template_kwargs",
    "enable_thinking": "use reasoning_effort or chat_template_kwargs",
    "documents": "use chat_template_kwargs",
    "prompt": "use messages",
    "input": "use messages",
    "suffix": "there is none in chats",
    "best_of": "use n",
}

COMPLETION: Remedies = {
    **GENERATION,
    "messages": "use prompt, or /v1/chat/completions",
    "input": "use prompt",
    "max_completion_tokens": "use max_tokens",
    "top_logprobs": "use logprobs, which is a number here",
    "prompt_embeds": "send text or token ids",
    "add_special_tokens": "send token ids",
    "tools": "use /v1/chat/completions",
    "functions": "use /v1/chat/completions",
    "reasoning_effort": "use /v1/chat/completions",
    "chat_template_kwargs": "use /v1/chat/completions",
}

RESPONSES: Remedies = {
    **ADAPTED,
    "messages": "use input",
    "prompt": "use input and instructions",
    "max_tokens": "use max_output_tokens",
    "max_completion_tokens": "use max_output_tokens",
    "max_new_tokens": "use max_output_tokens",
    "response_format": "use text.format",
    "logprobs": "use top_logprobs",
    "reasoning_effort": "use reasoning.effort",
    "verbosity": "say in the instructions how long the answer is to be",
    "functions": "use tools",
    "min_tokens": "use /v1/chat/completions",
    "min_new_tokens": "use /v1/chat/completions",
    "sampling_seed": "use seed",
    "json_schema": "use text.format with type json_schema",
    "structural_tag": "use text.format with type structural_tag",
    "stop_regex": "use stop",
    "image": "images are seen as they are",
    "conversation": "use previous_response_id",
    "context_management": "nothing is compacted; use truncation",
    "moderation": "nothing is moderated",
    "n": "one response is made for each request",
}

_SAMPLED = (
    *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
    *("logit_bias", "seed", "sampling_seed", "n", "stop", "stop_token_ids", "ignore_eos", "max_new_tokens"),
    *("min_new_tokens", "json_schema", "regex", "ebnf", "structural_tag"),
)
NATIVE: Remedies = {
    **EVERYWHERE,
    **dict.fromkeys(_SAMPLED, "it belongs into sampling_params"),
    "max_tokens": "use max_new_tokens in sampling_params",
    "response_format": "use json_schema in sampling_params",
    "prompt": "use text or input_ids",
    "messages": "use /v1/chat/completions",
    "tools": "use /v1/chat/completions",
    "session_params": _SESSIONS,
    "return_routed_experts": "routed experts are not told; record their distribution",
}
"""Remedies for ``/generate``."""

SAMPLING_PARAMS: Remedies = {
    **EVERYWHERE,
    "max_tokens": "use max_new_tokens",
    "max_completion_tokens": "use max_new_tokens",
    "min_tokens": "use min_new_tokens",
    "lora_path": "it stands beside sampling_params",
    "include_stop_str_in_output": "use no_stop_trim",
    "response_format": "use json_schema",
    "logprobs": "use return_logprob and top_logprobs_num, beside sampling_params",
    "return_logprob": "it stands beside sampling_params",
    "stream": "it stands beside sampling_params",
}


def asks(value: Any) -> bool:
    """Return False for a value that requests nothing."""
    return not (value is None or value is False or value in ([], ""))


def check(fields: Mapping[str, Any], remedies: Remedies) -> None:
    """Raise ``WrongField`` for the first of ``fields`` that requests something that does not exist here."""
    for name, value in fields.items():
        if name in remedies and asks(value) and value not in NEUTRAL.get(name, ()):
            raise WrongField(name, f"{name!r} would have no effect here: {remedies[name]}")
