"""Cross-encoders: query and document are read together, and the state of the first token is scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sglang_plug import BuildEnv, ForwardBatch, upload
from sglang_plug.layers import Linear
from sglang_plug.model import pooled
from sglang_plug.policy import Pooling
from sglang_plug_models.embedding.encoders import Roberta
from sglang_plug_models.encoder import Encoder

FIRST = Pooling(mode="cls", normalize=False)


class BertScorer(Encoder):
    """BERT: a pooler in the body, and one matrix. The two texts of a pair have token types of their own."""

    has_pooler: ClassVar[bool] = True
    ignored: ClassVar[tuple[str, ...]] = ("embeddings.position_ids",)

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        self.classifier = Linear(config.hidden_size, config.num_labels, env, bias=True)

    def segments(self, batch: ForwardBatch) -> Tensor:
        """1 behind the first separator. A text ends with a separator, so its last token tells which one that is."""
        if self.config.type_vocab_size < 2:
            return super().segments(batch)
        return behind_separator(batch.input_ids, batch.query_lens)

    def pool(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """A score for each label, ``[B, labels]`` float32."""
        assert self.model.pooler is not None
        first = pooled(hidden, lengths, FIRST).to(hidden.dtype)
        found: Tensor = self.classifier(self.model.pooler(first).tanh())
        return found.float()


class RobertaHead(nn.Module):
    """Two matrices."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size, env, bias=True)
        self.out_proj = Linear(config.hidden_size, config.num_labels, env, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, hidden]`` to ``[B, labels]``."""
        found: Tensor = self.out_proj(self.dense(x).tanh())
        return found


class RobertaScorer(Roberta):
    """RoBERTa and XLM-RoBERTa: no token types, and a head of two matrices."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        self.classifier = RobertaHead(config, env)

    def pool(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """A score for each label, ``[B, labels]`` float32."""
        first = pooled(hidden, lengths, FIRST).to(hidden.dtype)
        found: Tensor = self.classifier(first)
        return found.float()


def behind_separator(tokens: Tensor, lengths: Sequence[int]) -> Tensor:
    """1 for each of ``tokens`` ``[T]`` that stands behind its text's first separator, else 0.

    The separator is whatever a text ends with. A text with only one, at its end, is all 0.
    """
    counts = upload(lengths, torch.int64, tokens.device)
    ends, total = counts.cumsum(0), len(tokens)
    is_separator = (tokens == tokens[ends - 1].repeat_interleave(counts, output_size=total)).long()
    before = is_separator.cumsum(0) - is_separator  # separators before each token, earlier texts' included
    return (before > before[ends - counts].repeat_interleave(counts, output_size=total)).long()
