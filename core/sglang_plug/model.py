"""The contract between the engine and a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .attention import AttentionBackend, AttentionShape
from .batch import ForwardBatch
from .config import ConfigError
from .kernels import TORCH, Kernels


class WeightError(ConfigError):
    """A checkpoint does not fit the model; the message names the tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildEnv:
    """Everything a model may ask of its surroundings while it is being built."""

    attention: AttentionBackend
    kernels: Kernels = field(default=TORCH)
    tp_rank: int = 0
    tp_size: int = 1


class Model(nn.Module):
    """A model as the engine sees it: hidden states for new tokens, and a head over the rows the engine picked.

    Parameter names follow the checkpoint, so the class body is the name map except for ``packed``.
    """

    packed: ClassVar[dict[str, tuple[str, str]]] = {}
    """Path component in the checkpoint -> (ours, shard), e.g. ``"q_proj": ("qkv_proj", "q")``."""
    ignored: ClassVar[tuple[str, ...]] = ()
    """Parts of checkpoint names that carry nothing we need."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        self.config, self.env = config, env

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """Geometry of the KV pool, from the checkpoint's configuration."""
        heads = config.num_attention_heads
        return AttentionShape(
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            layers=config.num_hidden_layers,
        )

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states of every new token: ``[T, hidden]``."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward(batch)")

    def head(self, hidden: Tensor) -> Tensor:
        """Logits (or scores) of the rows the engine picked: ``[rows, hidden]`` to ``[rows, vocabulary]``."""
        raise NotImplementedError(f"{type(self).__name__} does not define head(hidden)")

    @torch.no_grad()
    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Fill every parameter from checkpoint tensors, one at a time.

        Raises ``WeightError`` if the checkpoint has a tensor we have no place for, one of another shape, or
        leaves a parameter unfilled. An alias of a tied parameter may be repeated or left out.
        """
        parameters = dict(self.named_parameters(remove_duplicate=False))
        filled: dict[int, set[str]] = {}
        for name, tensor in weights:
            if any(part in name for part in self.ignored):
                continue
            target, shard = self._place(name)
            parameter = parameters.get(target)
            if parameter is None:
                raise WeightError(f"checkpoint has {name!r} but {type(self).__name__} has no {target!r}")
            self._copy(name, target, shard, parameter, tensor)
            filled.setdefault(id(parameter), set()).add(shard or "")
        short = [name for name, parameter in parameters.items() if not self._is_full(name, parameter, filled)]
        if short:
            raise WeightError(f"checkpoint leaves {len(short)} parameters unfilled, first {min(short)!r}")

    def prepare(self) -> None:
        """After loading: let every layer bring its weights into the form its kernels want."""
        for module in self.modules():
            pack = getattr(module, "pack_weights", None)
            if pack is not None:
                pack()

    def _place(self, name: str) -> tuple[str, str | None]:
        parts = name.split(".")
        for index, part in enumerate(parts):
            if part in self.packed:
                ours, shard = self.packed[part]
                return ".".join((*parts[:index], ours, *parts[index + 1 :])), shard
        return name, None

    def _copy(self, name: str, target: str, shard: str | None, parameter: Tensor, tensor: Tensor) -> None:
        load = getattr(self.get_submodule(target.rpartition(".")[0]), "load_shard", None)
        try:
            if load is not None:
                load(parameter, tensor, shard)
            elif parameter.shape != tensor.shape:
                raise ValueError(f"expected shape {tuple(parameter.shape)}, found {tuple(tensor.shape)}")
            else:
                parameter.copy_(tensor)
        except (ValueError, KeyError, RuntimeError) as error:
            raise WeightError(f"checkpoint tensor {name!r} does not fit {target!r}: {error}") from error

    def _is_full(self, name: str, parameter: Tensor, filled: dict[int, set[str]]) -> bool:
        shards = filled.get(id(parameter), set())
        expected = getattr(self.get_submodule(name.rpartition(".")[0]), "shards", None)
        return bool(shards) if expected is None or "" in shards else set(expected) <= shards
