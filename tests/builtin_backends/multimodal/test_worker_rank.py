"""Worker ranks receive the multimodal inputs of a step as rank 0 computed them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sglang_plug import BidirectionalImage, ForwardBatch, MultimodalInputs, RankStep
from sglang_plug_backends.multimodal.extension import Multimodal
from sglang_plug_backends.multimodal.worker_rank import WorkerRankMultimodal


def batch(inputs: MultimodalInputs | None = None) -> ForwardBatch:
    numbers = torch.arange(3)
    return ForwardBatch(
        input_ids=numbers,
        positions=numbers,
        slots=numbers,
        tables=numbers.view(1, 3),
        query_lens=[3],
        kv_lens=[3],
        multimodal=inputs,
    )


@pytest.mark.parametrize("mrope_positions", [None, torch.arange(9).view(3, 3)])
@pytest.mark.parametrize("shape", [(2, 8), (2, 2, 8)])
def test_inputs_of_a_step_arrive(mrope_positions: Tensor | None, shape: tuple[int, ...]) -> None:
    images = (BidirectionalImage(sequence=0, row=1, position=1, count=2),)
    inputs = MultimodalInputs(torch.tensor([1, 2]), torch.randn(shape), mrope_positions, images)
    step = Multimodal(1 << 20).rank_step([], batch(inputs))
    assert isinstance(step, RankStep)
    followed = batch()
    assert WorkerRankMultimodal().prepare_step(step, followed) is None
    assert followed.multimodal is not None and followed.multimodal.bidirectional_images == images
    assert torch.equal(followed.multimodal.rows, inputs.rows)
    assert torch.equal(followed.multimodal.states, inputs.states)
    assert (followed.multimodal.mrope_positions is None) == (mrope_positions is None)
    assert mrope_positions is None or torch.equal(followed.multimodal.mrope_positions, mrope_positions)


def test_a_step_of_text_needs_nothing() -> None:
    assert Multimodal(1 << 20).rank_step([], batch()) is None
