"""A plugin with a Llama whose forward pass reads the lengths of sequences on the host."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from sglang_plug import ForwardBatch, ModelSpec, hookimpl
from sglang_plug_models.llama.model import Llama


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(name="LlamaForCausalLM", target=f"{__name__}:LookingLlama")


class LookingLlama(Llama):
    """A Llama that reads the lengths of sequences in Python."""

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return the hidden states, changed if a sequence is longer than a limit."""
        return super().forward(batch) * (1 + (max(batch.kv_lens) > 1 << 20))
