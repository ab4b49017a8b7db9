"""Differences of fields between this server and SGLang or vLLM, where both know the field, by route."""

from __future__ import annotations

GENERATION = {
    "model": "any name is served, unless `--strict-model-name` is given; an adapter's name selects the adapter",
    "priority": "higher is earlier, as at SGLang: among the requests of one caller, with `--schedule-policy priority` "
    "among all; vLLM's lower is earlier",
    "seed": "always honored, also in batches with others",
    "stop_regex": "searched in linear time: look-arounds, back-references and borders of words are refused",
    "top_logprobs": "at most 20",
    "logprobs": "at most 20 on `/v1/completions`",
    "prompt_logprobs": "at most 20; not in streams",
    "cache_salt": "separates prefixes in the cache",
    "logit_bias": "a logits processor, which may be blocked",
    "truncate_prompt_tokens": "keeps the last tokens; -1: as many as fit the model",
    "include_reasoning": "false leaves the reasoning out; it is generated all the same",
    "tool_choice": "`required` and named tools are enforced by a grammar",
    "lora_path": "an adapter that is loaded, by name",
}
DIFFERENCES = {
    "/v1/chat/completions": {
        **GENERATION,
        "return_token_ids": "as vLLM's `token_ids`, which SGLang calls `response_token_ids`",
    },
    "/v1/completions": {
        **GENERATION,
        "best_of": "`n` or 1",
        **dict.fromkeys(("extra_key", "rid"), "one for all prompts"),
        "cache_salt": GENERATION["cache_salt"] + "; one for all prompts",
        "lora_path": GENERATION["lora_path"] + "; one for all prompts",
    },
    "/v1/responses": {
        **{name: GENERATION[name] for name in ("model", "priority", "stop_regex", "top_logprobs")},
        "background": "kept in the store; events can be read later if `stream` was set",
        "include": "log-probabilities; parts that are never generated are accepted",
        "reasoning": "`effort`; what a model thinks is shown as it is, not summarized",
        "store": "in memory with the default store; at most `--max-stored-responses`",
        "tools": "functions; nothing is run by the server",
        "truncation": "`auto` drops the oldest turns",
    },
    "/generate": {
        "image_data": "for vision-language models",
        "lora_path": "an adapter that is loaded, by name",
        "input_embeds": "for models built on `CausalLM`",
        "stream": "`text` is all text so far; `incremental: true` gives what is new",
    },
    "/encode": {"dimensions": "for models whose vectors may be shortened"},
    "/v1/embeddings": {
        "input": "texts or token ids",
        "rid": "one for all inputs",
        "cache_salt": GENERATION["cache_salt"],
        "truncate_prompt_tokens": "keeps the first tokens; -1: as many as fit the model",
    },
    "/v1/classify": {"rid": "one for all inputs"},
    "/v1/rerank": {
        "query": "a text",
        "documents": "texts, or objects with a `text`",
        "instruct": "for models that are asked in words",
        "top_n": "at least 1",
        "truncate_prompt_tokens": "the answer is an object, as vLLM's",
    },
    "/v1/score": {
        "label_token_ids": "the same labels for all items",
        "temperature": "with `apply_softmax`; otherwise only 1",
    },
    "/tokenize": {"tools": "with `messages`", "tool_choice": "with `messages`"},
    "/load_lora_adapter": {"lora_path": "a folder of the server's machine", "pinned": "every adapter stays loaded"},
    "/update_weights_from_disk": {"load_format": "found out"},
    "/v1/messages": {
        "model": "any name, or an adapter's",
        "thinking": "`budget_tokens` has no effect",
        "tools": "custom tools",
    },
}
"""The difference of each field, by route."""

REFUSED_VALUES = {
    "/generate": {
        "audio_data": "there is no audio",
        "video_data": "there are no videos",
        "return_hidden_states": "hidden states are not reported",
    },
    "sampling_params": {"custom_params": "there is no custom logits processor"},
    "/encode": {
        "input_embeds": "send text or token ids",
        "image_data": "send text or token ids",
        "audio_data": "there is no audio",
        "video_data": "there are no videos",
    },
    "/v1/completions": {"suffix": "use a prompt that holds it"},
    "/v1/score": {"return_token_logprobs": "use `token_ids_logprob` on `/generate`"},
}
"""The reason for each declared field of which every value with an effect is refused, by route."""
