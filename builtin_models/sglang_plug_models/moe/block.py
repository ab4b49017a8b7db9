"""Parts shared by mixtures of experts: the sparse MLP, and the recording of chosen experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from sglang_plug import BuildEnv, ConfigError, ForwardBatch
from sglang_plug.layers import ExpertRecorder, Experts, Router
from sglang_plug.layers.moe import NAMES
from sglang_plug_models.common.blocks import CausalLM


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


class ExpertsCausalLM(CausalLM):
    """A language model with experts, whose choices can be recorded while it serves."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        self._recorder = ExpertRecorder(module for module in self.modules() if isinstance(module, Router))

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return the hidden states of every new token, ``[T, hidden]``."""
        self._recorder.begin(batch)
        return super().forward(batch)

    def controls(self) -> Mapping[str, Callable[..., Any]]:
        """Start, stop and dump the record of chosen experts."""
        return self._recorder.controls()
