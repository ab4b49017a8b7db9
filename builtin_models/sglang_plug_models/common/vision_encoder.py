"""Parts shared by vision-language models. Not a plugin."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from sglang_plug import RequestError

LOGITS = ("logits_scaling", "logit_scale")
"""Logit scalings of some decoders; heads of vision-language models are plain matrices."""


class VisionEncoder(nn.Module):
    """A vision encoder computed by transformers; checkpoint names omit the prefix ``body``.

    Its matrices are neither quantized nor packed: it runs once for each image.
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def map_weight_name(self, rest: str) -> tuple[str, str | None]:
        """Return our name and shard for a checkpoint's name below this module."""
        return f"body.{rest}", None


def decoder_config(config: Any) -> Any:
    """Return the decoder's configuration within that of a vision-language model, complete for a separate decoder."""
    result = copy.copy(config.text_config)
    result.tie_word_embeddings = bool(getattr(config, "tie_word_embeddings", False))
    for name in LOGITS:
        if hasattr(result, name):
            setattr(result, name, 1.0)
    return result


def renamed(name: str, prefixes: Mapping[str, str]) -> str:
    """Replace the first matching prefix of ``prefixes`` in a checkpoint's name."""
    for prefix, ours in prefixes.items():
        if name.startswith(prefix):
            return ours + name.removeprefix(prefix)
    return name


def media_error(reason: str) -> RequestError:
    """Return the error for media that another processor made."""
    return RequestError(f"the prompt's images are not as this model's media processor makes them: {reason}")
