"""Images on worker ranks, which receive the embeddings that rank 0 has encoded."""

from __future__ import annotations

import json

from sglang_plug import BidirectionalImage, ForwardBatch, MultimodalInputs, RankPhase, RankStep, StepExtension


class WorkerRankMultimodal(StepExtension, RankPhase):
    """Sets the multimodal inputs that rank 0 has computed for a step."""

    def prepare_step(self, step: RankStep, batch: ForwardBatch) -> None:
        """Set the embeddings of the images in the step."""
        batch.multimodal = decode_inputs(step)


def encode_inputs(inputs: MultimodalInputs) -> RankStep:
    """Return ``inputs`` as data for the worker ranks."""
    tensors = (inputs.rows, inputs.states, inputs.mrope_positions)
    images = [(image.sequence, image.row, image.position, image.count) for image in inputs.bidirectional_images]
    return RankStep(json.dumps(images).encode(), tuple(tensor for tensor in tensors if tensor is not None))


def decode_inputs(step: RankStep) -> MultimodalInputs:
    """Return the inputs from which ``encode_inputs`` made ``step``."""
    images = (
        BidirectionalImage(sequence=sequence, row=row, position=position, count=count)
        for sequence, row, position, count in json.loads(step.data)
    )
    rows, states, *mrope_positions = step.tensors
    return MultimodalInputs(rows, states, mrope_positions[0] if mrope_positions else None, tuple(images))
