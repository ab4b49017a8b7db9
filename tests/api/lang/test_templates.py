"""Tests of chat templates: the text that models were trained on, and the selection by model name."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_plug_lang import assistant, function, system, user
from sglang_plug_lang.templates import TEMPLATES, template_for, template_named

EXPECTED = {
    "default": "SYSTEM: S\nUSER: U\nASSISTANT: A\nUSER: V\n",
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
    "<|im_start|>user\nV<|im_end|>\n",
    "llama-3-instruct": "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nV<|eot_id|>",
    "llama-2-chat": "[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A </s><s>[INST] V [/INST]",
    "mistral": "[INST] S\n\nU[/INST] A</s>[INST] V[/INST]",
    "gemma-it": "<start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
    "<start_of_turn>user\nV<end_of_turn>\n",
    "vicuna": "S USER: U ASSISTANT: A</s>USER: V ",
}


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_a_conversation(backend: Any, name: str) -> None:
    backend.chat_template = template_named(name)

    @function
    def program(s: Any) -> None:
        s += system("S") + user("U") + assistant("A") + user("V")

    expected = EXPECTED.get(name) or EXPECTED["chatml"]
    assert program().text() == expected


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "qwen"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2-vl"),
        ("/models/qwen/Meta-Llama-3.1-8B-Instruct/", "llama-3-instruct"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-chat"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mistral"),
        ("google/gemma-2-2b-it", "gemma-it"),
        ("google/gemma-2-2b", "default"),
        ("lmsys/vicuna-7b-v1.5", "vicuna"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "chatml"),
        ("C:\\models\\Qwen3-0.6B", "qwen"),
        ("/cache/models--Qwen--Qwen3-0.6B/snapshots/0a1b2c", "qwen"),
        ("/somewhere/sglang_plug_models/demo/sglang-plug-demo", "qwen"),
        ("meta-llama/Llama-3.2-1B", "default"),
        ("", "default"),
    ],
)
def test_a_model_is_recognised(path: str, name: str) -> None:
    assert template_for(path).name == name


def test_unknown_names_and_roles() -> None:
    with pytest.raises(ValueError, match="unknown chat template 'qwem': there are chatml"):
        template_named("qwem")
    with pytest.raises(ValueError, match="has no role 'tool'"):
        template_named("qwen").before("tool", None)
