"""The report at the start names each choice with its reason, and hides secrets."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sglang_plug import EngineConfig
from sglang_plug.config import CacheOptions, ModelOptions
from sglang_plug_api.lifecycle.start_report import limits_line, server_args_line, start_report
from sglang_plug_api.options.config import ServerConfig

OWN = {"plugin": "p", "distribution": "sglang-plug", "version": "1", "reason": "chosen for cpu"}
INFO: dict[str, Any] = {
    "architecture": "LettersForCausalLM",
    "checkpoint_path": "/models/letters",
    "tasks": ["generate"],
    "device": "cpu",
    "dtype": "float32",
    "kv_cache_dtype": "bfloat16",
    "context_length": 100,
    "max_total_tokens": 404,
    "max_running_requests": 4,
    "max_queued_requests": 9,
    "chunked_prefill_size": 32,
    "page_size": 1,
    "memory_usage": {"kvcache": 1.5},
    "components": {
        "model": {**OWN, "name": "LettersForCausalLM", "reason": "named by the checkpoint"},
        "attention": {**OWN, "name": "quick", "distribution": "quick-attention", "version": "2.1"},
        "kernels": {**OWN, "name": "torch"},
        "eviction": {**OWN, "name": "lru", "reason": "named by the configuration"},
    },
}


def rows(config: ServerConfig, plugins: Any, **info: Any) -> dict[str, str]:
    first, *lines = start_report(config, plugins, {**INFO, **info}, "letters").splitlines()
    assert first == "Serving letters"
    return {line[2:18].strip(): line[19:] for line in lines}


def test_each_choice_has_its_reason(discover: Any) -> None:
    report = rows(ServerConfig(), discover())
    assert report["model"] == "LettersForCausalLM (named by the checkpoint)"
    assert report["eviction"] == "lru (the default)"
    assert report["kernels"] == "torch (chosen for cpu)"
    assert report["quantization"] == report["grammar backend"] == "none"
    assert report["context length"] == "100 tokens (from the checkpoint)"
    assert report["plugins"] == "only those of sglang-plug"


def test_options_of_the_user_are_the_reason(discover: Any) -> None:
    model = ModelOptions(path="org/letters", dtype="float32", context_length=100)
    config = ServerConfig(engine=EngineConfig(model=model, cache=CacheOptions(max_total_tokens=404)))
    report = rows(config, discover())
    assert report["checkpoint"] == "/models/letters (org/letters)"
    assert report["dtype"] == "float32 (given by --dtype)"
    assert report["context length"] == "100 tokens (given by --context-length)"
    assert report["KV cache"] == "404 tokens, 1.50 GiB, bfloat16 (given by --max-total-tokens)"


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [(404, "all running requests fit at full length"), (403, "the memory that --mem-fraction-static leaves")],
)
def test_the_size_of_the_kv_pool_is_explained(discover: Any, tokens: int, reason: str) -> None:
    report = rows(ServerConfig(), discover(), max_total_tokens=tokens)
    assert report["KV cache"] == f"{tokens} tokens, 1.50 GiB, bfloat16 ({reason})"


def test_what_other_distributions_provide_is_named(discover: Any, plugin_file: Any) -> None:
    mine = plugin_file("mine", "")
    report = rows(ServerConfig(), discover(mine, plugin_file("broken", "raise RuntimeError('out of order')")))
    assert report["attention"] == "quick (chosen for cpu, quick-attention 2.1)"
    assert re.fullmatch(
        rf"mine \({re.escape(mine)} \w+\), broken FAILED: RuntimeError: out of order", report["plugins"]
    )


def test_all_options_are_on_one_line_without_secrets() -> None:
    line = server_args_line(ServerConfig(api_keys=("hush",), admin_api_key="quiet", key_weights=("still=2",)))
    assert line.startswith("server_args=ServerArgs(model_path='auto', ")
    assert "api_key='********'" in line and "port=30000" in line
    assert not {"hush", "quiet", "still"} & set(line.replace("'", " ").replace("=", " ").split())


def test_limits_have_the_names_that_users_of_sglang_look_for() -> None:
    assert limits_line(INFO) == (
        "max_total_num_tokens=404, chunked_prefill_size=32, max_running_requests=4, context_len=100"
    )
