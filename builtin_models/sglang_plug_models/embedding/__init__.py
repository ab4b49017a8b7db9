"""Models that embed texts: encoders, and decoders whose checkpoints have no head.

A decoder with a head becomes one of these with ``--is-embedding``.
"""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, Task, hookimpl

DECODERS = {
    "LlamaModel": "llama.model:Llama",
    "MistralModel": "mistral.model:Mistral",
    "Qwen2Model": "qwen.qwen2:Qwen2",
    "Qwen3Model": "qwen.qwen3:Qwen3",
}
ENCODERS = {"BertModel": "Bert", "RobertaModel": "Roberta", "XLMRobertaModel": "Roberta"}


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    embed = frozenset[Task]({"embed"})
    for name, target in DECODERS.items():
        family = name.removesuffix("Model")
        yield ModelSpec(
            name=name,
            target=f"sglang_plug_models.{target}",
            tasks=embed,
            summary=f"{family} without a head",
            parallel=True,
        )
    for name, target in ENCODERS.items():
        family = name.removesuffix("Model")
        yield ModelSpec(
            name=name,
            target=f"{__name__}.encoders:{target}",
            tasks=embed,
            causal=False,
            summary=f"{family} and the sentence encoders made of it",
        )
