"""The layer on the page about recurrent states does what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from sglang_plug import AttentionShape, BuildEnv, ForwardBatch, RecurrentInputs, SequenceSpans, StatePool
from sglang_plug.testing.model.attention_inputs import make_batch
from sglang_plug_backends.torch_native.attention import TorchAttention

PAGE = Path(__file__).parents[2] / "docs" / "recurrent-states.md"
CPU = torch.device("cpu")
WIDTH = 8


def batch(pool: StatePool, row: int, start: int, end: int) -> ForwardBatch:
    forward_batch = make_batch([list(range(1, end + 1))], [end - start], kv=None, device=CPU)
    forward_batch.recurrent = RecurrentInputs(pool, SequenceSpans.of([row], [end - start], CPU))
    return forward_batch


@torch.no_grad()
def test_the_example_gives_the_same_however_a_sequence_is_cut() -> None:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(source, str(PAGE), "exec"), names)
    shape = AttentionShape(heads=1, kv_heads=1, dim=WIDTH, layers=1)
    layer = names["Retention"](WIDTH, BuildEnv(attention=TorchAttention(shape, CPU, None)), 0)
    for parameter in layer.parameters():
        parameter.normal_(std=0.3)
    pool = StatePool([layer.shape(WIDTH)], rows=4, dtype=torch.float32, device=CPU)
    x = torch.randn(20, WIDTH)
    whole = layer(x, batch(pool, 2, 0, 20))
    ends = [0, 7, 8, 20]
    cut = [layer(x[start:end], batch(pool, 3, start, end)) for start, end in zip(ends, ends[1:], strict=False)]
    torch.testing.assert_close(torch.cat(cut), whole)
    torch.testing.assert_close(pool.states[0][2], pool.states[0][3])
    assert not torch.allclose(layer(x[-1:], batch(pool, 3, 19, 20)), whole[-1:]), "the state counts"
