"""The names by which adapters may refer to the layers of a model."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import Mock

from torch import nn

from sglang_plug import BuildEnv, Model
from sglang_plug.layers import Linear, MergedColumnParallelLinear
from sglang_plug_backends.lora.lora_layers import described


class Small(Model):
    """A model whose checkpoints use other names for its block and for a matrix in it."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {
        "feed_forward": ("mlp", None),
        "gate_proj": ("gate_up_proj", "gate"),
        "up_proj": ("gate_up_proj", "up"),
        "old_proj": ("down_proj", None),
    }

    def __init__(self) -> None:
        env = BuildEnv(attention=Mock())
        super().__init__(SimpleNamespace(), env)
        gate_up, down = MergedColumnParallelLinear(8, {"gate": 4, "up": 4}, env), Linear(4, 8, env)
        self.mlp = nn.ModuleDict({"gate_up_proj": gate_up, "down_proj": down})


def test_renamed_parents_have_all_their_names() -> None:
    model = Small()
    gate_up, down = described(model, {f"mlp.{name}": layer for name, layer in model.mlp.items()})  # type: ignore[misc]
    assert gate_up.parts == {
        **dict.fromkeys(("mlp.gate_up_proj", "feed_forward.gate_up_proj"), slice(0, 8)),
        **dict.fromkeys(("mlp.gate_proj", "feed_forward.gate_proj"), slice(0, 4)),
        **dict.fromkeys(("mlp.up_proj", "feed_forward.up_proj"), slice(4, 8)),
    }
    assert list(down.parts) == ["mlp.down_proj", "feed_forward.down_proj", "mlp.old_proj", "feed_forward.old_proj"]
