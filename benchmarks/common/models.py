"""Shapes of real models as ``config.json`` folders without weights, for ``--load-format dummy``.

Run as ``python -m benchmarks.common.models FOLDER``. The vocabulary is cut to 32,768 tokens for the CPU shapes, so that
figures compare across servers whose tokenizers differ; embeddings are tied where the original's are.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCABULARY = 32_768
BYTES = 2
"""Bytes of a bfloat16 number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A decoder's dimensions and derived sizes."""

    name: str
    architecture: str
    model_type: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    dim: int
    vocabulary: int
    tied: bool
    bias: bool
    """True if query, key and value projections have biases (Qwen2)."""
    context: int
    theta: float
    scaling: Mapping[str, Any] | None = None

    @property
    def layer_weights(self) -> int:
        """Return the parameters of one layer's matrices."""
        attention = self.hidden * (2 * self.heads + 2 * self.kv_heads) * self.dim
        return attention + 3 * self.hidden * self.intermediate

    @property
    def head_weights(self) -> int:
        """Return the parameters of the output head."""
        return self.hidden * self.vocabulary

    @property
    def matmul_weights(self) -> int:
        """Return the parameters that a token is multiplied with: layers and head, without the embedding."""
        return self.layers * self.layer_weights + self.head_weights

    @property
    def kv_bytes(self) -> int:
        """Return the bytes of one token's keys and values over all layers, in bfloat16."""
        return 2 * self.layers * self.kv_heads * self.dim * BYTES

    def config(self) -> dict[str, Any]:
        """Return the content of ``config.json``."""
        rope = {"rope_type": "default", "rope_theta": self.theta, **(self.scaling or {})}
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.dim,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": self.context,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-06,
            "rope_parameters": rope,
            "dtype": "bfloat16",
            "bos_token_id": 1,
            "eos_token_id": 2,
        }


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def _llama(
    name: str,
    layers: int,
    hidden: int,
    intermediate: int,
    dim: int,
    vocabulary: int,
    *,
    tied: bool,
    heads: int = 32,
    kv_heads: int = 8,
) -> Shape:
    return Shape(
        name=name,
        architecture="LlamaForCausalLM",
        model_type="llama",
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        dim=dim,
        vocabulary=vocabulary,
        tied=tied,
        bias=False,
        context=131_072,
        theta=500_000.0,
        scaling=LLAMA3_ROPE,
    )


SHAPES = {
    shape.name: shape
    for shape in (
        Shape(
            name="0.5B",
            architecture="Qwen2ForCausalLM",
            model_type="qwen2",
            layers=24,
            hidden=896,
            intermediate=4864,
            heads=14,
            kv_heads=2,
            dim=64,
            vocabulary=VOCABULARY,
            tied=True,
            bias=True,
            context=32_768,
            theta=1_000_000.0,
        ),
        _llama("1B", 16, 2048, 8192, 64, VOCABULARY, tied=True),
        _llama("llama-1B", 16, 2048, 8192, 64, 128_256, tied=True),
        _llama("llama-8B", 32, 4096, 14_336, 128, 128_256, tied=False),
        _llama("tiny", 2, 64, 128, 32, 512, tied=True, heads=4, kv_heads=2),
    )
}
"""``0.5B`` is Qwen2.5-0.5B and ``1B`` Llama-3.2-1B, both with the small vocabulary; ``llama-1B`` and ``llama-8B`` are
Llama-3.2-1B and Llama-3.1-8B as they are; ``tiny`` is for trying a script out."""


def write_model(shape: Shape, folder: Path) -> Path:
    """Write ``folder/NAME/config.json`` and return that folder."""
    path = folder / shape.name
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(shape.config(), indent=2) + "\n", encoding="utf-8")
    return path


def main() -> None:
    """Write the shapes and print their sizes."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("--shape", action="append", choices=sorted(SHAPES), help="only this one; may be repeated")
    args = options.parse_args()
    for name in args.shape or SHAPES:
        shape = SHAPES[name]
        path = write_model(shape, args.folder)
        print(f"{path}: {shape.matmul_weights * BYTES / 1e9:.3f} GB are read for each token in bfloat16")


if __name__ == "__main__":
    main()
