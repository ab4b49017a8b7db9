"""Encoders and scoring heads of transformers, by transformers' own code and attention, each text on its own.

There is no KV pool and nothing is shared between texts: what transformers computes of one text alone is what is
returned. Texts of one length are computed together.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from sglang_plug import AttentionShape, BuildEnv, ForwardBatch, Model, Pooling
from sglang_plug.model import pooled
from sglang_plug_models.reranker.scorers import behind_separator

from .reference import DECODER, body_reader, filled, named_class, refusal, skeleton

PREFIX = "reference."
UNLIMITED = 4096
"""Tokens of a text for a model that takes any number."""
LAST = Pooling(mode="last", normalize=False)


def pooling_class(config: Any) -> type[PreTrainedModel]:
    """Transformers' class of the checkpoint's architecture. Raises ``ConfigError`` if it does not read texts alone."""
    kind = named_class(config)
    if getattr(config, "is_encoder_decoder", False):
        raise refusal(config, "it has an encoder and a decoder")
    if "input_ids" not in inspect.signature(kind.forward).parameters:
        raise refusal(config, "it does not read tokens")
    if getattr(config, "vocab_size", None) is None:
        raise refusal(config, "it reads more than tokens: its config.json has no vocab_size of its own")
    return kind


class TransformersEncoder(Model):
    """An encoder without a head. By default a text's vector is its first state, normalised."""

    default_pooling: ClassVar[Pooling] = Pooling(mode="cls")
    optional: ClassVar[tuple[str, ...]] = ("pooler.", "cls.", "lm_head.", "predictions.", "vocab_")
    """Parts that make no difference to states: checkpoints may lack them, or have them in vain."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        kind = pooling_class(config)
        self.dtype, self.device = torch.get_default_dtype(), torch.get_default_device()
        self.reference: Any = skeleton(kind, config, attention_of(kind))
        self.has_segments = tells_texts_apart(kind, config, position_tables(self.reference))

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """Of no use to anybody: attention is transformers' own. Raises ``ConfigError`` for other kinds of models."""
        pooling_class(config)
        cls.check_kind(config)
        return AttentionShape(heads=1, kv_heads=1, dim=64, layers=1)

    @classmethod
    def check_kind(cls, config: Any) -> None:
        """Raises ``ConfigError`` if transformers' class does something else than this one expects."""
        if body_reader(config) == DECODER:
            raise refusal(config, f"its first state sees one token only; --model-impl {DECODER} takes the last")

    @classmethod
    def context_length(cls, config: Any) -> int | None:
        """As many tokens as there are learned positions left; the first is that behind the padding token's. A model
        that states no limit gets one."""
        kind = pooling_class(config)
        if (getattr(config, "max_position_embeddings", None) or 1) < 1:
            return UNLIMITED
        tables = position_tables(skeleton(kind, config, attention_of(kind)))
        left = [one.num_embeddings - (-1 if one.padding_idx is None else one.padding_idx) - 1 for one in tables]
        return min(left, default=None)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """As transformers does, old layouts included. Raises ``WeightError`` if anything is missing or left over."""
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
        """States of every token, ``[T, hidden]``."""
        segments = self.segments(batch)
        found: list[Tensor | None] = [None] * len(batch.query_lens)
        for rows in self.together(batch.query_lens):
            inputs = {"input_ids": stacked(batch.input_ids, batch.query_lens, rows)}
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            if segments is not None:
                inputs["token_type_ids"] = stacked(segments, batch.query_lens, rows)
            for row, result in zip(rows, self.computed(inputs), strict=True):
                found[row] = result
        return torch.cat([one for one in found if one is not None])

    def segments(self, batch: ForwardBatch) -> Tensor | None:
        """Which of a pair's two texts each token belongs to, 0 or 1, ``[T]``; ``None``: there are no pairs."""
        return None

    def together(self, lengths: Sequence[int]) -> list[list[int]]:
        """The batch's texts in groups of one length each."""
        groups: dict[int, list[int]] = {}
        for row, length in enumerate(lengths):
            groups.setdefault(length, []).append(row)
        return list(groups.values())

    def computed(self, inputs: dict[str, Tensor]) -> Tensor:
        """Transformers' states of ``[B, length]`` tokens, ``[B, length, hidden]``."""
        states: Tensor = self.reference.base_model(**inputs).last_hidden_state
        return states


class TransformersDecoder(TransformersEncoder):
    """A decoder without a head. By default a text's vector is its last state, which has seen all of it, normalised."""

    default_pooling: ClassVar[Pooling] = Pooling(mode="last")

    @classmethod
    def check_kind(cls, config: Any) -> None:
        """Any model has a last state."""


class TransformersClassifier(TransformersEncoder):
    """A model with a head that scores or labels a text or a pair of texts."""

    optional: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def check_kind(cls, config: Any) -> None:
        """Raises ``ConfigError`` if there are no scores."""
        if named_class(config).__name__ not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.values():
            raise refusal(config, "it has no head that scores texts")

    def segments(self, batch: ForwardBatch) -> Tensor | None:
        """1 behind the first separator, which is what a text ends with, where the model tells texts apart."""
        return behind_separator(batch.input_ids, batch.query_lens) if self.has_segments else None

    def together(self, lengths: Sequence[int]) -> list[list[int]]:
        """Each text alone where the model does not know which token only fills a row."""
        if getattr(self.config, "pad_token_id", None) is None:
            return [[row] for row in range(len(lengths))]
        return super().together(lengths)

    def computed(self, inputs: dict[str, Tensor]) -> Tensor:
        """Each text's scores, at each of its tokens, ``[B, length, labels]``."""
        scores: Tensor = self.reference(**inputs).logits
        return scores[:, None].expand(-1, inputs["input_ids"].shape[1], -1)

    def pool(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """A score for each label, ``[B, labels]`` float32."""
        return pooled(hidden, lengths, LAST)


def position_tables(model: nn.Module) -> list[nn.Embedding]:
    """Learned positions."""
    return [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings")
    ]


def tells_texts_apart(kind: type[PreTrainedModel], config: Any, positions: Sequence[nn.Embedding]) -> bool:
    """Whether tokenizers give a pair's two texts token types of their own: not for RoBERTa's kin, whose positions are
    counted from the padding token's, even where the model has room for them."""
    if "token_type_ids" not in inspect.signature(kind.forward).parameters:
        return False
    return (getattr(config, "type_vocab_size", None) or 0) > 1 and all(one.padding_idx is None for one in positions)


def attention_of(kind: type[PreTrainedModel]) -> str:
    """The attention of transformers that a class is served with."""
    return "sdpa" if getattr(kind, "_supports_sdpa", False) else "eager"


def stacked(values: Tensor, lengths: Sequence[int], rows: Sequence[int]) -> Tensor:
    """``[T]`` to ``[len(rows), length]``: what belongs to some texts of one length."""
    pieces = torch.split(values, list(lengths))
    return torch.stack([pieces[row] for row in rows])
