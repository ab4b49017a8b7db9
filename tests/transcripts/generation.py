"""Recorded requests to the routes that generate text: sampling, log-probabilities, lengths, stops, several outputs."""

from __future__ import annotations

from typing import Any

from .exchanges import Talk

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
FRANCE: list[dict[str, Any]] = [{"role": "user", "content": "What is the capital of France?"}]
STORY: list[dict[str, Any]] = [{"role": "user", "content": "Tell me a story about a fox."}]
PROMPT = "The capital of France is"
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
PIXEL += "rkJggg=="
SAMPLED = {"temperature": 1, "seed": 11}

SHARED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "defaults of the model, seeded": {"seed": 3},
    "sampled": SAMPLED,
    "sampled, another seed": {"temperature": 1, "seed": 12},
    "hot, top_k": {"temperature": 1.7, "seed": 5, "top_k": 20},
    "top_p": {**SAMPLED, "top_p": 0.5},
    "min_p": {**SAMPLED, "min_p": 0.2},
    "three outputs": {**SAMPLED, "n": 3},
    "two greedy outputs": {"temperature": 0, "n": 2},
    "stop string": {"temperature": 0, "stop": " of"},
    "stop strings, kept": {"temperature": 0, "stop": ["zebra", "France"], "include_stop_str_in_output": True},
    "stop strings, not trimmed": {"temperature": 0, "stop": ["fox", " is"], "no_stop_trim": True},
    "stop token": {"temperature": 0, "stop_token_ids": [304, 262, 14, 15]},
    "logit bias": {"temperature": 0, "logit_bias": {"50": 100}},
    "logit bias against a token": {"temperature": 0, "logit_bias": {"304": -100, "284": -100}},
    "frequency penalty": {"temperature": 0, "frequency_penalty": 1.5},
    "presence penalty": {"temperature": 0, "presence_penalty": 1.5},
    "repetition penalty": {"temperature": 0, "repetition_penalty": 1.4},
    "all penalties, sampled": {**SAMPLED, "frequency_penalty": 0.4, "presence_penalty": 0.3, "repetition_penalty": 1.1},
    "at least 20 tokens": {"temperature": 0, "min_tokens": 20, "max_tokens": 30},
    "end token ignored": {"temperature": 0, "ignore_eos": True},
    "one token": {"temperature": 0, "max_tokens": 1},
    "no token": {"temperature": 0, "max_tokens": 0},
    "special tokens shown": {"temperature": 0, "skip_special_tokens": False, "ignore_eos": True},
    "user, request id, unknown field": {"temperature": 0, "user": "u", "rid": "mine", "nonsense": 1},
    "another model": {"temperature": 0, "model": "another"},
    "priority and salt": {"temperature": 0, "priority": 3, "cache_salt": "salt", "extra_key": "key"},
}
"""Fields that chat and completions have in common."""

CHATS: dict[str, dict[str, Any]] = {
    "log-probabilities": {"temperature": 0, "logprobs": True, "top_logprobs": 3},
    "log-probabilities without others": {**SAMPLED, "logprobs": True},
    "log-probabilities of two outputs": {**SAMPLED, "n": 2, "logprobs": True, "top_logprobs": 1},
    "max_completion_tokens": {"temperature": 0, "max_completion_tokens": 3},
    "system and turns": {
        "temperature": 0,
        "messages": [
            {"role": "system", "content": "Be brief."},
            *FRANCE,
            {"role": "assistant", "content": "Paris."},
            {"role": "user", "content": [{"type": "text", "text": "And of "}, {"type": "text", "text": "Japan?"}]},
        ],
    },
    "continued": {
        "temperature": 0,
        "messages": [*FRANCE, {"role": "assistant", "content": "The capital of France"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "no generation prompt": {"temperature": 0, "add_generation_prompt": False},
    "template variables": {"temperature": 0, "chat_template_kwargs": {"thinking": True}},
    "reasoning effort": {"temperature": 0, "reasoning_effort": "low"},
    "an image for a model of text": {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}]
    },
    "sound for a model of text": {
        "messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": ""}}]}]
    },
}
COMPLETED: dict[str, dict[str, Any]] = {
    "log-probabilities": {"temperature": 0, "logprobs": 3},
    "log-probabilities of the prompt": {"temperature": 0, "logprobs": 2, "echo": True},
    "log-probabilities of the prompt alone": {"temperature": 0, "logprobs": 1, "echo": True, "max_tokens": 0},
    "echo": {"temperature": 0, "echo": True},
    "suffix": {"temperature": 0, "suffix": " end"},
    "best_of": {**SAMPLED, "best_of": 2, "n": 1},
    "two prompts, two outputs": {**SAMPLED, "prompt": [PROMPT, "Once upon"], "n": 2},
    "token ids": {"temperature": 0, "prompt": [304, 284, 752]},
    "lists of token ids": {"temperature": 0, "prompt": [[304, 284, 752], [486]]},
    "empty prompt": {"temperature": 0, "prompt": ""},
    "empty list": {"temperature": 0, "prompt": []},
}
PARAMETERS: dict[str, dict[str, Any]] = {
    "min_new_tokens": {"temperature": 0, "min_new_tokens": 20, "max_new_tokens": 24},
    "sampling_seed": {"temperature": 1, "sampling_seed": 4},
    "stop regex": {"temperature": 0, "stop_regex": "[A-Z]"},
    "spaces between special tokens": {"temperature": 0, "spaces_between_special_tokens": False},
    "stream interval": {"temperature": 0, "stream_interval": 3},
    "custom parameters": {"temperature": 0, "custom_params": {"a": 1}},
}
NATIVE: dict[str, dict[str, Any]] = {
    "log-probabilities": {"return_logprob": True},
    "top log-probabilities with text": {"return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True},
    "log-probabilities of the prompt": {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2},
    "log-probabilities of given tokens": {
        "return_logprob": True,
        "token_ids_logprob": [304, 5],
        "logprob_start_len": 1,
    },
    "incremental": {"incremental": True},
    "token ids": {"text": None, "input_ids": [304, 284, 752]},
    "several prompts": {"text": [PROMPT, "Once upon", "The"], "rid": ["a", "b", "c"]},
    "several prompts and parameters": {
        "text": [PROMPT, "The"],
        "sampling_params": [{"temperature": 0, "max_new_tokens": 3}, {"temperature": 1, "sampling_seed": 2, "n": 2}],
        "return_logprob": [True, False],
    },
    "lists of token ids": {"text": None, "input_ids": [[304], [284, 752]]},
    "embeddings in": {"text": None, "input_embeds": [[0.0]]},
    "hidden states": {"return_hidden_states": True},
    "an image for a model of text": {"image_data": PIXEL},
    "sound for a model of text": {"audio_data": "eA=="},
    "text and token ids": {"input_ids": [5]},
    "neither text nor token ids": {"text": None},
    "too long": {"text": "word " * 6000},
    "token out of the vocabulary": {"text": None, "input_ids": [99999]},
}


def native(params: dict[str, Any]) -> dict[str, Any]:
    """Return parameters of chat under their names for ``/generate``, without fields that are no sampling parameters."""
    names = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}
    left_out = {"user", "rid", "model", "priority", "cache_salt", "extra_key", "include_stop_str_in_output"}
    return {names.get(key, key): value for key, value in params.items() if key not in left_out}


def ask_generation(talk: Talk) -> None:
    """Send requests with every parameter to the three routes, with and without streaming."""
    with talk.group("chat"):
        for name, more in (SHARED | CHATS).items():
            talk.both(name, CHAT, {"messages": FRANCE, "max_tokens": 12, **more})
        for number, options in enumerate(
            ({"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True})
        ):
            body = {"messages": STORY, "max_tokens": 5, "temperature": 0, "stream": True, "stream_options": options}
            talk.post(f"usage in the stream {number}", CHAT, body)
        talk.both("long story", CHAT, {"messages": STORY, "max_tokens": 120, "temperature": 1, "seed": 1})
        talk.both("long greedy story", CHAT, {"messages": STORY, "max_tokens": 120, "temperature": 0})
    with talk.group("completions"):
        for name, more in (SHARED | COMPLETED).items():
            talk.both(name, COMPLETIONS, {"prompt": PROMPT, "max_tokens": 12, **more})
        body = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0, "stream": True}
        talk.post("usage in the stream", COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
    with talk.group("generate"):
        for name, more in (SHARED | PARAMETERS).items():
            talk.both(name, GENERATE, {"text": PROMPT, "sampling_params": {"max_new_tokens": 12, **native(more)}})
        for name, more in NATIVE.items():
            talk.both(
                name, GENERATE, {"text": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": 6}, **more}
            )
        talk.send("put", "PUT", GENERATE, {"text": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": 6}})
        talk.post("the same prefix again", GENERATE, {"text": PROMPT * 8, "sampling_params": {"max_new_tokens": 0}})
        talk.post("cached", GENERATE, {"text": PROMPT * 8 + " x", "sampling_params": {"temperature": 0}})
