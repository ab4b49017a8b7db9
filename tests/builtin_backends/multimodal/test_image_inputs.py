"""The image embeddings of a step: each image is encoded once, and kept until the prompt has passed it."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_plug import Media, MediaArray, Model, Request, RequestError, SupportsImages
from sglang_plug.contracts.model.batch import BidirectionalImage
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug_backends.multimodal.image_inputs import largest_media, layout_of, multimodal_inputs
from sglang_plug_backends.multimodal.layout import MediaLayout

CPU = torch.device("cpu")
ARRAY = MediaArray("uint8", (1,), b"x")


class VisionModel(Model, SupportsImages):
    """A model whose embeddings of an image are consecutive numbers from the image's start."""

    def __init__(self, *, rows: int = 0, short: int = 0) -> None:
        torch.nn.Module.__init__(self)
        self.rows, self.short, self.encoded_starts = rows, short, list[list[int]]()

    def encode_images(self, media: Ordered[Media]) -> list[Tensor]:
        self.encoded_starts.append([item.start for item in media])
        return [torch.arange(item.count - self.short).float()[:, None] + item.start for item in media]

    def mrope_positions(self, media: Ordered[Media], length: int) -> Tensor | None:
        return torch.arange(length).expand(self.rows, -1) * 2 if self.rows else None


def admitted(model: Any, tokens: int, *spans: tuple[int, int]) -> Sequence:
    media = tuple(Media.of(start, count, {"a": ARRAY}) for start, count in spans)
    sequence = Sequence.of(Request(id="a", tokens=tuple(range(tokens)), media=media), 100)
    if media:
        sequence.layout = layout_of(model, sequence.request)
    return sequence


def test_chunks_share_what_was_seen_once() -> None:
    model = VisionModel()
    sequence = admitted(model, 10, (1, 5), (8, 2))
    steps = []
    for count in (3, 2, 3, 2):
        step = multimodal_inputs(model, [ScheduledChunk(sequence, count)], CPU)
        steps.append(None if step is None else (step.rows.tolist(), step.states.flatten().tolist()))
        sequence.computed += count
    assert steps == [([1, 2], [1, 2]), ([0, 1], [3, 4]), ([0], [5]), ([0, 1], [8, 9])]
    assert model.encoded_starts == [[1], [8]]
    assert isinstance(sequence.layout, MediaLayout) and not sequence.layout.states


class Reader(Model):
    """A text model that accepts input embeddings."""

    def __init__(self, width: int | None = 2) -> None:
        torch.nn.Module.__init__(self)
        self.input_embeds_width = width


def media_of(start: int, *numbers: float) -> Media:
    data = torch.tensor(numbers, dtype=torch.float32).numpy().tobytes()
    return Media.of_input_embeds(start, MediaArray("float32", (len(numbers) // 2, 2), data))


def test_input_embeddings_are_used_unchanged_and_in_chunks() -> None:
    media = media_of(0, 1, 2, 3, 4, 5, 6)
    sequence = Sequence.of(Request(id="a", tokens=(0, 0, 0), media=(media,)), 100)
    sequence.layout = layout_of(Reader(), sequence.request)
    steps = []
    for count in (2, 1):
        step = multimodal_inputs(Reader(), [ScheduledChunk(sequence, count)], CPU)
        assert step is not None and step.mrope_positions is None
        steps.append((step.rows.tolist(), step.states.tolist()))
        sequence.computed += count
    assert steps == [([0, 1], [[1, 2], [3, 4]]), ([0], [[5, 6]])]
    assert media_of(0, 1, 2).digest != media_of(0, 1, 3).digest


@pytest.mark.parametrize(
    ("model", "media"),
    [
        (Reader(3), (media_of(0, 1, 2),)),
        (Reader(None), (media_of(0, 1, 2),)),
        (VisionModel(), (media_of(0, 1, 2),)),
        (Reader(), (media_of(0, 1, 2), Media.of(1, 1, {"a": ARRAY}))),
    ],
)
def test_input_embeddings_that_do_not_fit_are_refused(model: Any, media: tuple[Media, ...]) -> None:
    with pytest.raises(RequestError, match="input_embeds") as refused:
        layout_of(model, Request(id="a", tokens=(0, 0), media=media))
    assert refused.value.about == "input_embeds"


def test_what_was_retracted_is_seen_again() -> None:
    model = VisionModel()
    sequence = admitted(model, 6, (1, 2))
    for _ in range(2):
        step = multimodal_inputs(model, [ScheduledChunk(sequence, 6)], CPU)
        assert step is not None and step.states.flatten().tolist() == [1, 2]
    assert model.encoded_starts == [[1], [1]]


def test_a_prefix_that_ends_within_an_image() -> None:
    model = VisionModel()
    sequence = admitted(model, 6, (1, 4))
    sequence.computed = 3
    step = multimodal_inputs(model, [ScheduledChunk(sequence, 3)], CPU)
    assert step is not None and (step.rows.tolist(), step.states.flatten().tolist()) == ([0, 1], [3, 4])


def test_several_sequences_are_seen_in_one_call_and_rows_count_through() -> None:
    model = VisionModel()
    text = admitted(model, 4)
    chunks = [
        ScheduledChunk(admitted(model, 5, (2, 2)), 5),
        ScheduledChunk(text, 4),
        ScheduledChunk(admitted(model, 3, (0, 3)), 3),
    ]
    step = multimodal_inputs(model, chunks, CPU)
    assert step is not None and step.rows.tolist() == [2, 3, 9, 10, 11]
    assert model.encoded_starts == [[2, 0]] and step.mrope_positions is None


def test_not_too_much_is_seen_in_one_call() -> None:
    model = VisionModel()
    chunk = ScheduledChunk(admitted(model, 14, (0, 2), (2, 2), (4, 1), (5, 6), (11, 3)), 14)
    step = multimodal_inputs(model, [chunk], CPU, max_encoder_tokens=4)
    assert step is not None and step.rows.tolist() == list(range(14))
    assert model.encoded_starts == [[0, 2], [4], [5], [11]]


def test_the_largest_images_fill_one_call() -> None:
    class ModelWithLargestMedia(VisionModel):
        def example(self, tokens: int) -> Media | None:
            return Media.of(0, 3, {}) if tokens > 2 else None

    def starts(tokens: int, max_encoder_tokens: int = 8) -> list[int]:
        media = largest_media(ModelWithLargestMedia(), tokens, max_encoder_tokens=max_encoder_tokens)
        return [item.start for item in media]

    assert starts(100) == [0, 3]
    assert starts(4) == [0]
    assert starts(2) == [] and largest_media(VisionModel(), 100) == ()
    assert starts(100, max_encoder_tokens=2) == [0]


def test_bidirectional_images_have_their_positions() -> None:
    class Whole(VisionModel):
        bidirectional_images = True

    model = Whole()
    resumed = admitted(model, 9, (1, 2), (4, 3))
    resumed.computed = 3
    assert isinstance(resumed.layout, MediaLayout) and resumed.layout.whole == (range(1, 3), range(4, 7))
    step = multimodal_inputs(
        model,
        [
            ScheduledChunk(admitted(model, 4), 4),
            ScheduledChunk(resumed, 6),
            ScheduledChunk(admitted(model, 3, (1, 2)), 3),
        ],
        CPU,
    )
    assert step is not None and step.bidirectional_images == (
        BidirectionalImage(sequence=1, row=5, position=4, count=3),
        BidirectionalImage(sequence=2, row=11, position=1, count=2),
    )
    step = multimodal_inputs(VisionModel(), [ScheduledChunk(admitted(VisionModel(), 3, (1, 2)), 3)], CPU)
    assert step is not None and step.bidirectional_images == ()


def test_coordinates_of_the_whole_step() -> None:
    model = VisionModel(rows=2)
    resumed = admitted(model, 3, (1, 1))
    resumed.tokens += [7, 8]
    text = admitted(model, 2)
    step = multimodal_inputs(
        model, [ScheduledChunk(text, 2), ScheduledChunk(resumed, 5), ScheduledChunk(admitted(model, 4, (0, 2)), 3)], CPU
    )
    assert step is not None and step.mrope_positions is not None
    # positions of text are indices; those of the prompts with images are multiples of two, and output tokens continue
    # after the greatest one
    assert step.mrope_positions.tolist() == [[0, 1, 0, 2, 4, 5, 6, 0, 2, 4]] * 2


def test_steps_without_tokens_of_images_encode_nothing() -> None:
    model = VisionModel()
    passed = admitted(model, 6, (1, 2))
    passed.computed = 3
    assert multimodal_inputs(model, [ScheduledChunk(passed, 3), ScheduledChunk(admitted(model, 2), 2)], CPU) is None
    assert not model.encoded_starts


def test_a_model_that_gives_too_few_states_is_named() -> None:
    model = VisionModel(short=1)
    with pytest.raises(RuntimeError, match="VisionModel.encode_images returned 1 states for an image of 2 tokens"):
        multimodal_inputs(model, [ScheduledChunk(admitted(model, 6, (1, 2)), 6)], CPU)


@pytest.mark.parametrize("spans", [((4, 3),), ((1, 3), (3, 1)), ((2, 1), (1, 1)), ((1, 0),)])
def test_images_must_be_in_the_prompt_and_in_order(spans: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(RequestError, match="do not fit a prompt of 6 tokens"):
        admitted(VisionModel(), 6, *spans)
