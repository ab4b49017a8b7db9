"""Decoders that score: the last token's state covers the whole text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from sglang_plug import BuildEnv, Pooling, pooled
from sglang_plug.layers import Linear
from sglang_plug_models.common.blocks import CausalLM
from sglang_plug_models.gemma.model import Gemma2
from sglang_plug_models.llama.model import Llama
from sglang_plug_models.mistral.model import Mistral
from sglang_plug_models.qwen.qwen2 import Qwen2
from sglang_plug_models.qwen.qwen3 import Qwen3

LAST = Pooling(mode="last", normalize=False)


class Scorer(CausalLM):
    """A decoder with ``score`` instead of the language-model head."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        self.score = self.scoring(config, env)

    def scoring(self, config: Any, env: BuildEnv) -> nn.Module:
        """Build the head, ``[B, hidden]`` to ``[B, labels]``."""
        return Linear(config.hidden_size, config.num_labels, env)

    @classmethod
    def pools_whole_prompts(cls, pooling: Pooling) -> bool:
        """Return False: the last state is enough, whatever the checkpoint's embedding settings say."""
        return False

    def pool(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return a score for each label, ``[B, labels]`` float32."""
        last = pooled(hidden, lengths, LAST).to(hidden.dtype)
        result: Tensor = self.score(last)
        return result.float()


class Gemma2Scorer(Scorer, Gemma2):
    """Gemma 2 with a score."""


class LlamaScorer(Scorer, Llama):
    """Llama with a score."""


class MistralScorer(Scorer, Mistral):
    """Mistral with a score."""


class Qwen2Scorer(Scorer, Qwen2):
    """Qwen2 with a score."""


class Qwen3Scorer(Scorer, Qwen3):
    """Qwen3 with a score."""


class Qwen2Reward(Scorer, Qwen2):
    """Qwen2 as a reward model: one score, from two matrices."""

    def scoring(self, config: Any, env: BuildEnv) -> nn.Module:
        """Build two matrices with biases."""
        width = config.hidden_size
        return nn.Sequential(Linear(width, width, env, bias=True), nn.ReLU(), Linear(width, 1, env, bias=True))
