"""Phi-3 (Abdin et al., 2024) and Phi-4: Llama with fused matrices in the checkpoint.

A part of each head may be left unrotated, and the long variants divide the angles' frequencies by ``longrope``
factors: by the short list if the server's context length is within the original one, by the long list for every
sequence if it is not (see ``sglang_plug.layers.rotary``). A server that needs no long context gives the model's
outputs on short ones with ``--context-length`` set to the original length.
"""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

from sglang_plug import BuildEnv
from sglang_plug.layers import Rope
from sglang_plug_models.common.blocks import CausalLM, Decoder, SelfAttention, head_dim, window_of

logger = logging.getLogger(__name__)


class PartialRopeDecoder(Decoder):
    """A decoder that may rotate part of each head."""

    def positions(self, config: Any, env: BuildEnv) -> nn.Module:
        """Return the tables from which ``angles`` are computed."""
        return Rope.of(config, head_dim(config), env.context_length)


class Phi3(CausalLM):
    """Phi-3, Phi-3.5 and Phi-4."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        original = config.rope_parameters.get("original_max_position_embeddings")
        served = env.context_length or config.max_position_embeddings
        if config.rope_parameters.get("rope_type") == "longrope" and original and served > original:
            logger.info(
                "longrope: every sequence is served with the factors for contexts of more than %d tokens; "
                "--context-length %d selects those for short ones",
                original,
                original,
            )

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        return PartialRopeDecoder(config, env, layers)

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build attention to the last ``sliding_window`` tokens, or to all."""
        return SelfAttention(config, env, index, window=window_of(config, index))
