"""Fields that have an effect on other servers or routes but none here, and remedies for clients that send them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_plug_api.answers.errors import WrongField

Remedies = Mapping[str, str]
"""Maps a field to its remedy."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "beam_width": (1,),
    "best_of": (1,),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "function_call": ("none",),
    "include_reasoning": (True,),
    "image": ({"context_compression": "auto"}, {"context_compression": "disabled"}),
    "modalities": (["text"],),
    "length_penalty": (1.0,),
    "max_tokens_per_doc": (0,),
    "max_tokens_per_query": (0,),
    "n": (1,),
    "padding": ("do_not_pad",),
    "reasoning": ({},),
    "thinking_token_budget": (-1,),
    "verbosity": ("medium",),
}
"""Values of such fields that are accepted because they change nothing."""

FALSE_ASKS = frozenset({"use_activation", "include_reasoning"})
"""Fields of which false is_requested for something, too."""

_PROCESSOR = "images are processed as the checkpoint says"
_WATERMARK = "a plugin can watermark generated text: sglang-plug plugins search watermark"
_NOT_SPLIT = (
    "prefill and decode engines are paired by the server (--prefill-replicas, --prefill-servers), not by requests"
)
_THINKING = "or a plugin that limits reasoning: sglang-plug plugins search thinking"
_OWN_ENCODER = "this server encodes images itself"
EVERYWHERE: Remedies = {
    "guided_json": "use response_format with type json_schema",
    "guided_regex": "use regex",
    "guided_choice": "use regex with alternatives",
    "guided_grammar": "use ebnf",
    "guided_decoding_backend": "the grammar backend is chosen by the server",
    "guided_whitespace_pattern": "whitespace is bounded by the server",
    "chat_template": "templates in requests are refused; start the server with --chat-template",
    "use_beam_search": "beam search is not supported; use n with temperature",
    "beam_width": "beam search is not supported; use n with temperature",
    "length_penalty": "beam search is not supported",
    "bad_words": "use logit_bias",
    "custom_logit_processor": "code in requests is refused; install a plugin",
    "max_length": "use max_tokens (max_new_tokens on /generate)",
    "extra_body": "it is an argument of OpenAI's client; on the wire its keys stand at the top level",
    "mm_processor_kwargs": _PROCESSOR,
    "mm_payload": "send images, which the server processes",
    "media_io_kwargs": _PROCESSOR,
    "images_config": _PROCESSOR,
    "max_dynamic_patch": _PROCESSOR,
    "min_dynamic_patch": _PROCESSOR,
    "use_audio_in_video": "there are no videos",
    "video_config": "there are no videos",
    "watermark": _WATERMARK,
    "watermarking": _WATERMARK,
    "kv_transfer_params": _NOT_SPLIT,
    "ec_transfer_params": _NOT_SPLIT,
    "bootstrap_host": _NOT_SPLIT,
    "bootstrap_port": _NOT_SPLIT,
    "bootstrap_room": _NOT_SPLIT,
    "vllm_xargs": "fields of logits processors stand next to the others",
}
"""Remedies for all bodies."""

PLAIN: Remedies = {
    **EVERYWHERE,
    "structured_outputs": "use response_format, regex or ebnf",
    "prompt_logprobs": "use echo with logprobs on /v1/completions, or logprob_start_len on /generate",
    "truncate_prompt_tokens": "shorten the prompt before sending it",
    "stop_regex": "use stop",
    "return_token_ids": "use /v1/chat/completions",
}
"""Remedies for bodies that declare none of their own: those of plugins, and parts of bodies."""

ADAPTED: Remedies = {**EVERYWHERE, "lora_path": "name the adapter as model"}
"""Remedies for bodies that have a ``model`` and no field for an adapter."""

_NO_SAMPLING_MASK = (
    "the set of tokens that could be sampled is not reported; use log-probabilities of the likeliest tokens"
)
_EXPERTS = "routed experts are not reported; record their distribution"
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
    "custom_params": "there is no custom logits processor",
    "return_hidden_states": "hidden states are not reported",
    "return_routed_experts": _EXPERTS,
    "return_spec_tokens_details": "see /metrics",
    "return_tokens_as_token_ids": "use return_token_ids",
    "return_prompt_text": "use return_prompt_token_ids, and /detokenize",
    "logprob_token_ids": "use token_ids_logprob of /generate",
    "repetition_detection": "use repetition_penalty, or stop",
    "session_params": _SESSIONS,
    "moderation": "nothing is moderated",
    "thinking_token_budget": f"use max_tokens, {_THINKING}",
}
"""Remedies for chat and text completions."""

CHAT: Remedies = {
    **GENERATION,
    "functions": "use tools",
    "function_call": "use tool_choice",
    "return_input_ids_in_sglext": "use return_prompt_token_ids",
    "return_output_ids_in_sglext": "use return_token_ids",
    "return_sampling_mask": _NO_SAMPLING_MASK,
    "sampling_logprobs_mode": _NO_SAMPLING_MASK,
    "return_flat_raw_output_top_logprobs": "use top_logprobs",
    "return_flat_raw_top_logprobs_b64": "use top_logprobs",
    "audio": "there is no audio output",
    "modalities": "there is no output but text",
    "web_search_options": "nothing is searched; declare a function",
    "verbosity": "state the desired length in a message",
    "thinking": "use reasoning_effort or chat_template_kwargs",
    "enable_thinking": "use reasoning_effort or chat_template_kwargs",
    "documents": "use chat_template_kwargs",
    "prompt": "use messages",
    "input": "use messages",
    "suffix": "there is none in chats",
    "best_of": "use n",
    "echo": "use continue_final_message",
    "input_ids": "use /generate, or /v1/completions with token ids as prompt",
    "reasoning": "use reasoning_effort",
    "task": "say in a message what the task is",
    "add_special_tokens": "a chat template brings its own",
}

COMPLETION: Remedies = {
    **GENERATION,
    "messages": "use prompt, or /v1/chat/completions",
    "input": "use prompt",
    "max_completion_tokens": "use max_tokens",
    "top_logprobs": "use logprobs, which is a number here",
    "prompt_embeds": "send text or token ids",
    "tools": "use /v1/chat/completions",
    "functions": "use /v1/chat/completions",
    "reasoning_effort": "use /v1/chat/completions",
    "chat_template_kwargs": "use /v1/chat/completions",
}

RESPONSES: Remedies = {
    **ADAPTED,
    "truncate_prompt_tokens": "use truncation",
    "prompt_logprobs": "use /v1/chat/completions",
    "return_token_ids": "use /v1/chat/completions",
    "return_meta_info": "use /v1/chat/completions",
    "messages": "use input",
    "prompt": "use input and instructions",
    "max_tokens": "use max_output_tokens",
    "max_completion_tokens": "use max_output_tokens",
    "max_new_tokens": "use max_output_tokens",
    "response_format": "use text.format",
    "logprobs": "use top_logprobs",
    "reasoning_effort": "use reasoning.effort",
    "verbosity": "state the desired length in the instructions",
    "functions": "use tools",
    "min_tokens": "use /v1/chat/completions",
    "min_new_tokens": "use /v1/chat/completions",
    "sampling_seed": "use seed",
    "json_schema": "use text.format with type json_schema",
    "structural_tag": "use text.format with type structural_tag",
    "image": "images are used at their own resolution",
    "conversation": "use previous_response_id",
    "context_management": "nothing is compacted; use truncation",
    "moderation": "nothing is moderated",
    "include_reasoning": "reasoning is an item of its own, which may be left out when it is read",
    "n": "one response is made for each request",
    "enable_response_messages": "use /v1/responses/{id}/input_items",
    "previous_input_messages": "use input",
    "previous_response": "use previous_response_id",
}

_NO_CONVERSATION = "send the text that the chat template renders"
_ABORTED = "outputs end with the reason abort"
_OVERRIDES = "embeddings of single tokens cannot be replaced"
POOLING: Remedies = {
    **ADAPTED,
    "embed_override_token_id": _OVERRIDES,
    "embed_overrides": _OVERRIDES,
    "query_embed_overrides": _OVERRIDES,
    "item_embed_overrides": _OVERRIDES,
    "return_pooled_hidden_states": "use /v1/embeddings",
    "use_activation": "vectors and scores are those that the checkpoint describes",
    "padding": "texts are not padded",
    "embed_dtype": "vectors are float32",
    "endianness": "vectors are little-endian",
    "messages": "send the text that the chat template renders",
    "rank_fields": "documents are texts",
    "max_chunks_per_doc": "use max_tokens_per_doc",
    "max_tokens_per_query": "use truncate_prompt_tokens",
    "add_generation_prompt": _NO_CONVERSATION,
    "continue_final_message": _NO_CONVERSATION,
    "chat_template_kwargs": _NO_CONVERSATION,
    "instruction": "use instruct",
}
"""Remedies for embeddings, classification and rerank."""

SCORE: Remedies = {
    **POOLING,
    "max_tokens_per_doc": "use truncate_prompt_tokens",
    "instruction": "write it into the query",
    "score_extraction_token": "use label_token_ids",
}
"""Remedies for ``/v1/score``."""

ENCODE: Remedies = {
    **PLAIN,
    "truncate_prompt_tokens": "use /v1/embeddings",
    "embed_override_token_id": _OVERRIDES,
    "embed_overrides": _OVERRIDES,
    "positional_embed_overrides": _OVERRIDES,
    "return_pooled_hidden_states": "use /v1/embeddings",
    "return_prompt_token_ids": "use /tokenize",
    "multi_item_delimiter_indices": "use /v1/score",
    "token_indices_to_pool": "states are pooled as the checkpoint describes",
    "decision_layout": "use /v1/score",
    "is_cross_encoder_request": "use /v1/rerank or /v1/score",
    "lora_id": "use lora_path",
}
"""Remedies for ``/encode`` and ``/classify``."""

ABORT: Remedies = {
    "weight_versions": "name a request, or set abort_all",
    "finished_reason": _ABORTED,
    "abort_message": _ABORTED,
}
"""Remedies for ``/abort_request``."""

ADAPTERS: Remedies = {
    "load_inplace": "unload the adapter first",
}
"""Remedies for loading adapters."""

WEIGHTS: Remedies = {
    "is_async": "the answer comes once the weights are served",
    "keep_pause": "requests go on after an update",
    "manifest": "all weights of the checkpoint are loaded",
}
"""Remedies for updates of weights."""

SEPARATE_REASONING: Remedies = {"return_blocks": "reasoning is one text"}
"""Remedies for ``/separate_reasoning``."""

TOKENIZE: Remedies = {**EVERYWHERE, "documents": "use chat_template_kwargs"}
"""Remedies for ``/tokenize``."""

_SAMPLED = (
    *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
    *("logit_bias", "seed", "sampling_seed", "n", "stop", "stop_token_ids", "ignore_eos", "max_new_tokens"),
    *("min_new_tokens", "json_schema", "regex", "ebnf", "structural_tag", "stop_regex"),
)
NATIVE: Remedies = {
    **EVERYWHERE,
    "truncate_prompt_tokens": "shorten the prompt before sending it",
    "prompt_logprobs": "use logprob_start_len",
    "structured_outputs": "use json_schema, regex or ebnf in sampling_params",
    "return_token_ids": "output_ids has them",
    "return_meta_info": "every answer has meta_info",
    **dict.fromkeys(_SAMPLED, "it belongs in sampling_params"),
    "max_tokens": "use max_new_tokens in sampling_params",
    "response_format": "use json_schema in sampling_params",
    "prompt": "use text or input_ids",
    "messages": "use /v1/chat/completions",
    "tools": "use /v1/chat/completions",
    "session_params": _SESSIONS,
    "return_routed_experts": _EXPERTS,
    "return_indexer_topk": "the tokens that attention selects are not reported",
    "return_sampling_mask": _NO_SAMPLING_MASK,
    "return_entropy": "use top_logprobs_num",
    "return_flat_raw_top_logprobs": "log-probabilities are lists of [logprob, token, text]",
    "return_flat_raw_top_logprobs_b64": "log-probabilities are lists of [logprob, token, text]",
    "positional_embed_overrides": "use input_embeds",
    "multi_item_delimiter_indices": "use /v1/score",
    "token_indices_to_pool": "use token_ids_logprob with logprob_start_len",
    "encoder_urls": _OWN_ENCODER,
    "need_wait_for_mm_inputs": _OWN_ENCODER,
    "image_max_dynamic_patch": _PROCESSOR,
    "video_max_dynamic_patch": _PROCESSOR,
    "return_flat_raw_output_top_logprobs": "log-probabilities are lists of [logprob, token, text]",
    "return_bytes": "outputs are text and token ids",
    "sampling_logprobs_mode": _NO_SAMPLING_MASK,
    "lora_id": "use lora_path",
    "bootstrap_pair_key": _NOT_SPLIT,
    "decode_tp_size": _NOT_SPLIT,
    "require_reasoning": "use /v1/chat/completions",
    "max_thinking_tokens": f"use max_new_tokens in sampling_params, {_THINKING}",
}
"""Remedies for ``/generate``."""

SAMPLING_PARAMS: Remedies = {
    **EVERYWHERE,
    "truncate_prompt_tokens": "shorten the prompt before sending it",
    "prompt_logprobs": "use logprob_start_len, next to sampling_params",
    "max_tokens": "use max_new_tokens",
    "max_completion_tokens": "use max_new_tokens",
    "min_tokens": "use min_new_tokens",
    "lora_path": "it stands next to sampling_params",
    "include_stop_str_in_output": "use no_stop_trim",
    "response_format": "use json_schema",
    "logprobs": "use return_logprob and top_logprobs_num, next to sampling_params",
    "return_logprob": "it stands next to sampling_params",
    "stream": "it stands next to sampling_params",
}


def is_requested(value: Any) -> bool:
    """Return False for a value that requests nothing."""
    return not (value is None or value is False or value in ([], ""))


def check(fields: Mapping[str, Any], remedies: Remedies) -> None:
    """Raise ``WrongField`` for the first of ``fields`` that requests something that does not exist here."""
    for name, value in fields.items():
        requests = is_requested(value) or (value is False and name in FALSE_ASKS)
        if name in remedies and requests and value not in NEUTRAL.get(name, ()):
            raise WrongField(name, f"{name!r} would have no effect here: {remedies[name]}")
