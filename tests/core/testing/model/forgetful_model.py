"""A model whose attention omits the sum over tensor-parallel ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from sglang_plug import BuildEnv
from sglang_plug_models.qwen.qwen3 import Qwen3

from .faulty_executors import PassedOn


class ForgetsOthers(PassedOn):
    """Collectives whose sums contain only the rank's own part."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x


class ForgetfulModel(Qwen3):
    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        return super().attention(config, replace(env, ranks=ForgetsOthers(env.ranks)), index)
