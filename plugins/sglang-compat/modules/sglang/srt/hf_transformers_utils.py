"""``sglang.srt.hf_transformers_utils``, the earlier name of ``sglang.srt.utils.hf_transformers_utils``."""

from __future__ import annotations

from sglang.srt.utils.hf_transformers_utils import *  # noqa: F403
