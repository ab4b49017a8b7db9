"""The sparse MLP of mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from sglang_plug import BuildEnv, ConfigError
from sglang_plug.layers import Experts, Router
from sglang_plug.layers.moe import NAMES


class SparseMLP(nn.Module):
    """A router and its experts, whose activation is the checkpoint's ``hidden_act``."""

    def __init__(
        self,
        config: Any,
        env: BuildEnv,
        router: Router,
        *,
        width: int,
        names: Mapping[str, str] = NAMES,
    ) -> None:
        super().__init__()
        self.gate = router
        self.experts = Experts(
            config.hidden_size, width, router.experts, env, names=names, activation_name=config.hidden_act
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        return self.experts(x, *self.gate.choose(x))


def router(
    config: Any, env: BuildEnv, index: int, *, experts: int, normalise: bool = True, kind: type[Router] = Router
) -> Router:
    """Build the router of layer ``index``."""
    chosen = config.num_experts_per_tok
    if not 1 <= chosen <= experts:
        raise ConfigError(f"num_experts_per_tok is {chosen}, but the model has {experts} experts")
    return kind(config.hidden_size, experts, chosen, env, layer=index, normalise=normalise)
