"""What models that see share. Not a plugin."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from sglang_plug import RequestError

LOGITS = ("logits_scaling", "logit_scale")
"""What some decoders do to their logits; heads of models that see are matrices, and nothing else."""


class Tower(nn.Module):
    """A part that reads images, as transformers computes it; checkpoints leave the name ``body`` out.

    Its matrices are neither quantized nor packed: it runs once for each image.
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def place(self, rest: str) -> tuple[str, str | None]:
        """What follows this part's path in a checkpoint, to our name and shard."""
        return f"body.{rest}", None


def decoder_config(config: Any) -> Any:
    """The configuration of the decoder within that of a model that sees, complete for a decoder of its own."""
    found = copy.copy(config.text_config)
    found.tie_word_embeddings = bool(getattr(config, "tie_word_embeddings", False))
    for name in LOGITS:
        if hasattr(found, name):
            setattr(found, name, 1.0)
    return found


def renamed(name: str, prefixes: Mapping[str, str]) -> str:
    """A checkpoint's name, with the first of ``prefixes`` that it has replaced."""
    for prefix, ours in prefixes.items():
        if name.startswith(prefix):
            return ours + name.removeprefix(prefix)
    return name


def wrong_media(reason: str) -> RequestError:
    """The refusal of media that another processor made."""
    return RequestError(f"the prompt's images are not as this model's media processor makes them: {reason}")
