"""Tests of the prompts of a benchmark: random ones, which depend on the seed, and conversations from a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_plug import ConfigError
from sglang_plug_api.benchmarking.prompts import random_prompts, sharegpt_prompts


def test_random_prompts_have_the_wanted_lengths() -> None:
    first = random_prompts(20, 40, 10, 0.5, vocabulary=500, seed=1)
    assert first == random_prompts(20, 40, 10, 0.5, vocabulary=500, seed=1)
    assert first != random_prompts(20, 40, 10, 0.5, vocabulary=500, seed=2)
    assert all(20 <= len(prompt.content) <= 60 and 5 <= prompt.output_len <= 15 for prompt in first)
    assert all(100 <= token < 500 for prompt in first for token in prompt.content if isinstance(token, int))
    assert {len(prompt.content) for prompt in random_prompts(3, 40, 10, 0.0, vocabulary=500, seed=1)} == {40}


def test_chats_get_words() -> None:
    (prompt,) = random_prompts(1, 7, 1, 0.0, vocabulary=None, seed=0)
    assert isinstance(prompt.content, str) and len(prompt.content.split()) == 7


def test_conversations_are_repeated_if_there_are_too_few(tmp_path: Path) -> None:
    entries = [
        {"conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "x" * 40}]},
        {"conversations": [{"from": "human", "value": "alone"}]},
        {"other": 1},
    ]
    file = tmp_path / "chats.json"
    file.write_text(json.dumps(entries))
    prompts = sharegpt_prompts(file, 3, None, seed=0)
    assert [(prompt.content, prompt.output_len) for prompt in prompts] == [("Hello", 10)] * 3
    assert sharegpt_prompts(file, 1, 4, seed=0)[0].output_len == 4


@pytest.mark.parametrize(("text", "message"), [("{", "cannot be read as JSON"), ("{}", "has no conversation")])
def test_a_file_without_conversations_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "chats.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        sharegpt_prompts(file, 1, None, seed=0)
