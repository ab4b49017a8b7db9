"""Encoders and scoring heads of transformers, by transformers' own code and attention, each text on its own.

There is no KV pool and nothing is shared between texts: the results are those that transformers computes for each text
alone. Texts of one length are computed together.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from sglang_plug import AttentionShape, BuildEnv, ForwardBatch, Model, Pooling, pooled
from sglang_plug_models.reranker.scorers import behind_separator

from .reference import DECODER, body_reader, filled, named_class, refusal, skeleton

PREFIX = "reference."
UNLIMITED = 4096
"""Maximum tokens of a text for a model without a limit."""
LAST = Pooling(mode="last", normalize=False)


def pooling_class(config: Any) -> type[PreTrainedModel]:
    """Return transformers' class. Raises ``ConfigError`` if it does not read texts alone."""
    kind = named_class(config)
    if getattr(config, "is_encoder_decoder", False):
        raise refusal(config, "it has an encoder and a decoder")
    if "input_ids" not in inspect.signature(kind.forward).parameters:
        raise refusal(config, "it does not read tokens")
    if getattr(config, "vocab_size", None) is None:
        raise refusal(config, "it reads more than tokens: its config.json has no vocab_size of its own")
    return kind


class TransformersEncoder(Model):
    """An encoder without a head. By default a text's vector is its normalised first hidden state."""

    default_pooling: ClassVar[Pooling] = Pooling(mode="cls")
    optional: ClassVar[tuple[str, ...]] = ("pooler.", "cls.", "lm_head.", "predictions.", "vocab_")
    """Parts that do not affect hidden states: they may be missing in checkpoints or unused."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        kind = pooling_class(config)
        self.dtype, self.device = torch.get_default_dtype(), torch.get_default_device()
        self.reference: Any = skeleton(kind, config, attention_of(kind))
        self.has_segments = has_segment_types(kind, config, position_tables(self.reference))

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """Return an unused geometry: attention is transformers' own. Raises ``ConfigError`` for others."""
        pooling_class(config)
        cls.check_kind(config)
        return AttentionShape(heads=1, kv_heads=1, dim=64, layers=1)

    @classmethod
    def check_kind(cls, config: Any) -> None:
        """Raise ``ConfigError`` if transformers' class is of another kind than this one expects."""
        if body_reader(config) == DECODER:
            raise refusal(config, f"its first state sees one token only; --model-impl {DECODER} takes the last")

    @classmethod
    def context_length(cls, config: Any) -> int | None:
        """Return the number of learned positions after the padding token's. Models without a limit get a default."""
        kind = pooling_class(config)
        if (getattr(config, "max_position_embeddings", None) or 1) < 1:
            return UNLIMITED
        tables = position_tables(skeleton(kind, config, attention_of(kind)))
        limits = [
            table.num_embeddings - (-1 if table.padding_idx is None else table.padding_idx) - 1 for table in tables
        ]
        return min(limits, default=None)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load weights like transformers, old layouts included. Raises ``WeightError`` for missing or unused ones."""
        kind = pooling_class(self.config)
        named = ((name.removeprefix(PREFIX), tensor) for name, tensor in weights)
        self.reference = filled(
            kind,
            self.config,
            named,
            self.dtype,
            self.device,
            attention=attention_of(kind),
            optional=self.optional,
        )

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return the hidden states of every token, ``[T, hidden]``."""
        segments, lengths = self.segments(batch), list(batch.query_lens)
        tokens = torch.split(batch.input_ids, lengths)
        types = None if segments is None else torch.split(segments, lengths)
        outcome: list[Tensor | None] = [None] * len(batch.query_lens)
        for rows in self.together(batch.query_lens):
            inputs = {"input_ids": torch.stack([tokens[row] for row in rows])}
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            if types is not None:
                inputs["token_type_ids"] = torch.stack([types[row] for row in rows])
            for row, result in zip(rows, self.computed(inputs), strict=True):
                outcome[row] = result
        return torch.cat([value for value in outcome if value is not None])

    def segments(self, batch: ForwardBatch) -> Tensor | None:
        """Return the segment of each token in a pair, 0 or 1, ``[T]``; ``None`` if there are no pairs."""
        return None

    def together(self, lengths: Sequence[int]) -> list[list[int]]:
        """Group the batch's texts by length."""
        groups: dict[int, list[int]] = {}
        for row, length in enumerate(lengths):
            groups.setdefault(length, []).append(row)
        return list(groups.values())

    def computed(self, inputs: dict[str, Tensor]) -> Tensor:
        """Compute transformers' states of ``[B, length]`` tokens, ``[B, length, hidden]``."""
        states: Tensor = self.reference.base_model(**inputs).last_hidden_state
        return states


class TransformersDecoder(TransformersEncoder):
    """A decoder without a head. By default a text's vector is its normalised last hidden state."""

    default_pooling: ClassVar[Pooling] = Pooling(mode="last")

    @classmethod
    def check_kind(cls, config: Any) -> None:
        """Accept any model: all have a last state."""


class TransformersClassifier(TransformersEncoder):
    """A model with a head that scores or labels a text or a pair of texts."""

    optional: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def check_kind(cls, config: Any) -> None:
        """Raise ``ConfigError`` if there are no scores."""
        if named_class(config).__name__ not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.values():
            raise refusal(config, "it has no head that scores texts")

    def segments(self, batch: ForwardBatch) -> Tensor | None:
        """Return 1 after the first separator, the token that ends a text, if the model distinguishes the texts."""
        return behind_separator(batch.input_ids, batch.query_lens) if self.has_segments else None

    def together(self, lengths: Sequence[int]) -> list[list[int]]:
        """Group the texts; each text is alone if the model cannot ignore padding."""
        if getattr(self.config, "pad_token_id", None) is None:
            return [[row] for row in range(len(lengths))]
        return super().together(lengths)

    def computed(self, inputs: dict[str, Tensor]) -> Tensor:
        """Compute each text's scores, repeated for each of its tokens, ``[B, length, labels]``."""
        scores: Tensor = self.reference(**inputs).logits
        return scores[:, None].expand(-1, inputs["input_ids"].shape[1], -1)

    def pool(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return a score for each label, ``[B, labels]`` float32."""
        return pooled(hidden, lengths, LAST)


def position_tables(model: nn.Module) -> list[nn.Embedding]:
    """Return the tables of learned positions."""
    return [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings")
    ]


def has_segment_types(kind: type[PreTrainedModel], config: Any, positions: Sequence[nn.Embedding]) -> bool:
    """Return whether tokenizers give a pair's two texts separate token types.

    Not for RoBERTa-like models, whose positions are counted from the padding token's, even if they have token types.
    """
    if "token_type_ids" not in inspect.signature(kind.forward).parameters:
        return False
    return (getattr(config, "type_vocab_size", None) or 0) > 1 and all(
        embedding.padding_idx is None for embedding in positions
    )


def attention_of(kind: type[PreTrainedModel]) -> str:
    """Return transformers' attention implementation for a class."""
    return "sdpa" if getattr(kind, "_supports_sdpa", False) else "eager"
