"""Cross-encoders: query and document are read together, and the first token's state is scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sglang_plug import BuildEnv, ForwardBatch, Pooling, pooled, upload
from sglang_plug.layers import Linear
from sglang_plug_models.common.encoder import Encoder
from sglang_plug_models.embedding.encoders import Roberta

FIRST = Pooling(mode="cls", normalize=False)


class BertScorer(Encoder):
    """BERT scorer: a pooler in the body, and one matrix. The two texts of a pair have separate token types."""

    has_pooler: ClassVar[bool] = True
    ignored: ClassVar[tuple[str, ...]] = ("embeddings.position_ids",)

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        self.classifier = Linear(config.hidden_size, config.num_labels, env, bias=True)

    def segments(self, batch: ForwardBatch) -> Tensor:
        """Return 1 after the first separator; the separator is the token that ends a text."""
        if self.config.type_vocab_size < 2:
            return super().segments(batch)
        return behind_separator(batch.input_ids, batch.query_lens)

    def pool(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return a score for each label, ``[B, labels]`` float32."""
        assert self.model.pooler is not None
        first = pooled(hidden, lengths, FIRST).to(hidden.dtype)
        result: Tensor = self.classifier(self.model.pooler(first).tanh())
        return result.float()


class RobertaHead(nn.Module):
    """A scoring head of two matrices."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size, env, bias=True)
        self.out_proj = Linear(config.hidden_size, config.num_labels, env, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, hidden]`` to ``[B, labels]``."""
        result: Tensor = self.out_proj(self.dense(x).tanh())
        return result


class RobertaScorer(Roberta):
    """RoBERTa and XLM-RoBERTa: no token types, and a head of two matrices."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        self.classifier = RobertaHead(config, env)

    def pool(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return a score for each label, ``[B, labels]`` float32."""
        first = pooled(hidden, lengths, FIRST).to(hidden.dtype)
        result: Tensor = self.classifier(first)
        return result.float()


def behind_separator(tokens: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return 1 for each of ``tokens`` ``[T]`` after its text's first separator, else 0.

    The separator is the token that ends a text. A text with only one, at its end, is all 0.
    """
    counts = upload(lengths, torch.int64, tokens.device)
    ends, total = counts.cumsum(0), len(tokens)
    is_separator = (tokens == tokens[ends - 1].repeat_interleave(counts, output_size=total)).long()
    before = is_separator.cumsum(0) - is_separator  # separators before each token, earlier texts' included
    return (before > before[ends - counts].repeat_interleave(counts, output_size=total)).long()
