"""Tests of the separation of reasoning and answer."""

from __future__ import annotations

import pytest

from sglang_plug_lang.reasoning import ReasoningFormat


@pytest.mark.parametrize(
    ("kind", "text", "thoughts", "answer"),
    [
        ("qwen3", "<think>\na\n</think>\n\nb", "a", "b"),
        ("qwen3", "b", "", "b"),
        ("qwen3", "<think>a", "a", ""),
        ("qwen3", "a</think>b", "a", "b"),
        ("qwen3", "<think>\n\n</think>\n\nb", "", "b"),
        ("deepseek-r1", "a</think>b", "a", "b"),
        ("deepseek-r1", "<think>a</think>b</think>c", "a", "b</think>c"),
        ("deepseek-r1", "never ends", "never ends", ""),
    ],
)
def test_split(kind: str, text: str, thoughts: str, answer: str) -> None:
    assert ReasoningFormat.of(kind).split(text) == (thoughts, answer)
