"""Images in prompts: encoding them with the model, and the inputs that a step needs."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Ordered
from dataclasses import replace

import torch
from torch import Tensor

from sglang_plug import (
    BidirectionalImage,
    ChunkView,
    Media,
    Model,
    MultimodalInputs,
    Request,
    RequestError,
    SequenceView,
    SupportsImages,
    TensorStore,
    send,
    upload,
    upload_array,
)

from .layout import MediaLayout, cache_tokens

MAX_ENCODER_TOKENS = 4096
"""Largest number of image tokens that are encoded in one call, unless a single image has more."""


def layout_of(model: Model, request: Request) -> MediaLayout:
    """Make the layout of the prompt of ``request``, which has images, for ``model``.

    Raises ``RequestError`` if the model takes no images, or if the images are not within the prompt.
    """
    length, end = len(request.tokens), 0
    if any(media.is_encoded for media in request.media):
        _check_precomputed(model, request)
        return MediaLayout(cache_tokens(request))
    if not isinstance(model, SupportsImages):
        raise RequestError("the model takes text only, and the prompt has images")
    for media in request.media:
        if media.count < 1 or media.start < end or media.end > length:
            raise RequestError(
                f"the positions {media.start} to {media.end} of an image do not fit a prompt of {length} tokens"
            )
        end = media.end
    whole = tuple(range(media.start, media.end) for media in request.media) if model.bidirectional_images else ()
    mrope_positions = model.mrope_positions(request.media, length)
    if mrope_positions is None:
        return MediaLayout(cache_tokens(request), whole=whole)
    shift = int(mrope_positions.max()) + 1 - length
    return MediaLayout(cache_tokens(request), mrope_positions, mrope_positions[0].tolist(), shift, whole)


def _check_precomputed(model: Model, request: Request) -> None:
    """Raise ``RequestError`` if input embeddings do not fit the model, or if the prompt also has other media."""
    if isinstance(model, SupportsImages) or model.input_embeds_width is None:
        raise RequestError("this model does not support input_embeds", about="input_embeds")
    for media in request.media:
        shape = [part.shape for part in media.arrays.values()]
        if not media.is_encoded or shape != [(media.count, model.input_embeds_width)]:
            width = shape[0][-1] if shape and shape[0] else 0
            raise RequestError(
                f"input_embeds have {width} numbers per position; "
                f"the model's hidden size is {model.input_embeds_width}",
                about="input_embeds",
            )


def multimodal_inputs(
    model: Model,
    chunks: Ordered[ChunkView],
    device: torch.device,
    store: TensorStore | None = None,
    *,
    max_encoder_tokens: int = MAX_ENCODER_TOKENS,
) -> MultimodalInputs | None:
    """Build the inputs that replace token embeddings in the step of ``chunks``; ``None`` if the step has no images.

    Images that the step reaches for the first time are encoded, unless their embeddings were loaded; embeddings that a
    later chunk needs are kept. Newly encoded images are put into ``store``. One call of the encoder gets at most
    ``max_encoder_tokens`` tokens, or a single image.
    """
    in_step = _images_in_step(chunks)
    if not in_step:
        return None
    _take_precomputed(in_step, device)
    _take_loaded(in_step, device)
    _encode_missing(model, in_step, store, max_encoder_tokens)
    rows, states = list[int](), list[Tensor]()
    for chunk, first, index in in_step:
        media, layout = chunk.sequence.request.media[index], _layout(chunk)
        start, end = max(chunk.start, media.start), min(chunk.end, media.end)
        rows += range(first + start - chunk.start, first + end - chunk.start)
        states.append(layout.states[index][start - media.start : end - media.start])
        if end == media.end:
            del layout.states[index]
    mrope_positions = None
    if any(_layout(chunk).mrope_positions is not None for chunk, _, _ in in_step):
        mrope_positions = send(_mrope_positions(chunks), device)
    return MultimodalInputs(
        upload(rows, torch.int64, device), torch.cat(states), mrope_positions, _whole(chunks, in_step)
    )


def largest_media(model: Model, tokens: int, *, max_encoder_tokens: int = MAX_ENCODER_TOKENS) -> tuple[Media, ...]:
    """Return the images of one encoder call that takes the most memory, in a prompt of at most ``tokens``.

    Empty if the model takes no images, or gives no example.
    """
    example = model.example(tokens) if isinstance(model, SupportsImages) else None
    if example is None:
        return ()
    copies = max(1, min(max_encoder_tokens, tokens) // example.count)
    return tuple(replace(example, start=number * example.count) for number in range(copies))


def _images_in_step(chunks: Ordered[ChunkView]) -> list[tuple[ChunkView, int, int]]:
    """Find every image with tokens in a chunk: the chunk, its first row in the step, and the image's index."""
    in_step, first = list[tuple[ChunkView, int, int]](), 0
    for chunk in chunks:
        if chunk.sequence.layout is not None:
            for index, media in enumerate(chunk.sequence.request.media):
                if media.start < chunk.end and chunk.start < media.end:
                    in_step.append((chunk, first, index))
        first += chunk.width
    return in_step


def _whole(chunks: Ordered[ChunkView], in_step: Ordered[tuple[ChunkView, int, int]]) -> tuple[BidirectionalImage, ...]:
    """Return the images in ``in_step`` whose tokens attend to each other in both directions."""
    numbers = {id(chunk): number for number, chunk in enumerate(chunks)}
    images = []
    for chunk, first, index in in_step:
        if _layout(chunk).whole:
            media = chunk.sequence.request.media[index]
            row = first + media.start - chunk.start
            images.append(
                BidirectionalImage(sequence=numbers[id(chunk)], row=row, position=media.start, count=media.count)
            )
    return tuple(images)


def _encode_missing(
    model: Model, in_step: Ordered[tuple[ChunkView, int, int]], store: TensorStore | None, max_encoder_tokens: int
) -> None:
    """Encode all images whose embeddings are missing, in as few calls as possible, and put them into ``store``."""
    missing = [(chunk, index) for chunk, _, index in in_step if index not in _layout(chunk).states]
    if not missing:
        return
    assert isinstance(model, SupportsImages)
    media = [chunk.sequence.request.media[index] for chunk, index in missing]
    encoded = (states for group in _groups(media, max_encoder_tokens) for states in model.encode_images(group))
    for (chunk, index), image, states in zip(missing, media, encoded, strict=True):
        if len(states) != image.count:
            raise RuntimeError(
                f"{type(model).__name__}.encode_images returned {len(states)} states for an image of "
                f"{image.count} tokens"
            )
        _layout(chunk).states[index] = states
        if store is not None:
            store.put_tensor(chunk.sequence, image.digest, states)


def begin_loads(sequence: SequenceView, store: TensorStore, start: int) -> bool:
    """Begin to load the embeddings of the images that end after token ``start``; return False if none can be loaded."""
    layout, media = sequence.layout, sequence.request.media
    assert isinstance(layout, MediaLayout)
    for index, image in enumerate(media):
        if image.end > start and not image.is_encoded:
            if (load := store.load_tensor(sequence, image.digest, image.count)) is not None:
                layout.loads[index] = load
    return bool(layout.loads)


def are_loaded(sequence: SequenceView) -> bool:
    """Return True if the images of a prompt have no unfinished load."""
    return isinstance(sequence.layout, MediaLayout) and all(load.done for load in sequence.layout.loads.values())


def _take_loaded(in_step: Ordered[tuple[ChunkView, int, int]], device: torch.device) -> None:
    """Send loaded embeddings to the device."""
    for chunk, _, index in in_step:
        media, layout = chunk.sequence.request.media[index], _layout(chunk)
        load = layout.loads.pop(index, None)
        if load is not None and index not in layout.states and (states := load.value) is not None:
            if len(states) == media.count:
                layout.states[index] = send(states, device)


def _take_precomputed(in_step: Ordered[tuple[ChunkView, int, int]], device: torch.device) -> None:
    """Copy the input embeddings of requests, which need no encoding, to the device."""
    for chunk, _, index in in_step:
        media, layout = chunk.sequence.request.media[index], _layout(chunk)
        if media.is_encoded and index not in layout.states:
            (states,) = media.arrays.values()
            layout.states[index] = upload_array(states, device)


def _groups(media: Ordered[Media], max_encoder_tokens: int) -> Iterator[list[Media]]:
    """Yield the groups of images that are encoded in one call, in order."""
    group, tokens = list[Media](), 0
    for item in media:
        if group and tokens + item.count > max_encoder_tokens:
            yield group
            group, tokens = [], 0
        group.append(item)
        tokens += item.count
    yield group


def _mrope_positions(chunks: Ordered[ChunkView]) -> Tensor:
    """Return ``[R, T]`` positions of the whole step; a token with one position has it in all rows."""
    height = max(len(rows) for chunk in chunks if (rows := _rows(chunk)) is not None)
    parts = []
    for chunk in chunks:
        rows, prompt = _rows(chunk), chunk.sequence.prompt_len
        if rows is not None and chunk.end <= prompt:
            parts.append(rows[:, chunk.start : chunk.end])
        else:
            parts.append(torch.tensor(_positions(chunk)).expand(height, -1))
            if rows is not None and chunk.start < prompt:  # resumed: generated tokens follow the prompt
                parts[-1] = torch.cat([rows[:, chunk.start :], parts[-1][:, prompt - chunk.start :]], dim=1)
    return torch.cat(parts, dim=1)


def _positions(chunk: ChunkView) -> list[int]:
    layout, end = chunk.sequence.layout, chunk.start + chunk.width
    return list(range(chunk.start, end) if layout is None else layout.positions(chunk.start, end))


def _rows(chunk: ChunkView) -> Tensor | None:
    layout = chunk.sequence.layout
    return layout.mrope_positions if isinstance(layout, MediaLayout) else None


def _layout(chunk: ChunkView) -> MediaLayout:
    layout = chunk.sequence.layout
    assert isinstance(layout, MediaLayout)
    return layout
