"""BERT (Devlin et al., 2019), RoBERTa (Liu et al., 2019) and XLM-RoBERTa (Conneau et al., 2020), as text encoders.

How a text's states become one vector stands in the checkpoint's ``modules.json``, if it has one.
"""

from __future__ import annotations

from typing import Any

from sglang_plug_models.encoder import Encoder


class Bert(Encoder):
    """BERT."""


class Roberta(Encoder):
    """RoBERTa and XLM-RoBERTa: positions are counted from behind that of the padding token."""

    @classmethod
    def first_position(cls, config: Any) -> int:
        """One more than the padding token's id."""
        return int(config.pad_token_id) + 1
