"""BERT (Devlin et al., 2019), RoBERTa (Liu et al., 2019) and XLM-RoBERTa (Conneau et al., 2020), as text encoders.

The checkpoint's ``modules.json``, if present, defines the pooling.
"""

from __future__ import annotations

from typing import Any

from sglang_plug_models.common.encoder import Encoder


class Bert(Encoder):
    """BERT."""


class Roberta(Encoder):
    """RoBERTa and XLM-RoBERTa: positions start after that of the padding token."""

    @classmethod
    def first_position(cls, config: Any) -> int:
        """Return one more than the padding token's id."""
        return int(config.pad_token_id) + 1
