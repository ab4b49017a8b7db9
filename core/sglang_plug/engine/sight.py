"""Images in prompts: how the model sees them, and what a step needs of that."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Ordered
from dataclasses import replace

import torch
from torch import Tensor

from sglang_plug.batch import Seen, SeenWhole
from sglang_plug.media import Media
from sglang_plug.model import Model, Seeing
from sglang_plug.request import Request, RequestError
from sglang_plug.transfer import send, upload, upload_array

from .shares import Share
from .view import View

AT_ONCE = 4096
"""Places of images that are seen together at most, unless one image has more."""


def view_of(model: Model, request: Request) -> View:
    """How ``model`` sees the prompt of ``request``, which has images.

    Raises ``RequestError`` if the model does not see, or if the places of the images are not in the prompt.
    """
    length, end = len(request.tokens), 0
    if any(media.is_given for media in request.media):
        _check_given(model, request)
        return View(length, None, [], 0)
    if not isinstance(model, Seeing):
        raise RequestError("the model takes text only, and the prompt has images")
    for media in request.media:
        if media.count < 1 or media.start < end or media.end > length:
            raise RequestError(f"an image has the places {media.start} to {media.end} of a prompt of {length} tokens")
        end = media.end
    whole = tuple(range(media.start, media.end) for media in request.media) if model.sees_whole else ()
    coordinates = model.coordinates(request.media, length)
    if coordinates is None:
        return View(length, None, [], 0, whole)
    return View(length, coordinates, coordinates[0].tolist(), int(coordinates.max()) + 1 - length, whole)


def _check_given(model: Model, request: Request) -> None:
    """The states of a prompt fit the model, and are all that it has besides tokens. Raises ``RequestError``."""
    if isinstance(model, Seeing) or model.states_width is None:
        raise RequestError("this model's prompts cannot have states instead of tokens", about="states")
    for media in request.media:
        shape = [one.shape for one in media.arrays.values()]
        if not media.is_given or shape != [(media.count, model.states_width)]:
            width = shape[0][-1] if shape and shape[0] else 0
            raise RequestError(
                f"the prompt has states of {width} numbers; the model's have {model.states_width}", about="states"
            )


def seen(model: Model, shares: Ordered[Share], device: torch.device) -> Seen | None:
    """What stands in the place of embeddings in the step of ``shares``; ``None`` if there are no images in it.

    Images that the step meets for the first time are looked at; what a later chunk needs of them is kept.
    """
    if not any(share.sequence.view is not None and share.start < share.sequence.prompt_len for share in shares):
        return None
    met = _met(shares)
    if not met:
        return None
    _take_given(met, device)
    _look(model, met)
    rows, states = list[int](), list[Tensor]()
    for share, first, index in met:
        media, view = share.sequence.request.media[index], _view(share)
        start, end = max(share.start, media.start), min(share.end, media.end)
        rows += range(first + start - share.start, first + end - share.start)
        states.append(view.states[index][start - media.start : end - media.start])
        if end == media.end:
            del view.states[index]
    coordinates = None
    if any(_view(share).coordinates is not None for share, _, _ in met):
        coordinates = send(_coordinates(shares), device)
    return Seen(upload(rows, torch.int64, device), torch.cat(states), coordinates, _whole(shares, met))


def largest_media(model: Model, tokens: int) -> tuple[Media, ...]:
    """Images that take as much memory as any that are seen together, in a prompt of at most ``tokens``.

    Empty if the model sees none, or does not tell.
    """
    example = model.example(tokens) if isinstance(model, Seeing) else None
    if example is None:
        return ()
    copies = max(1, min(AT_ONCE, tokens) // example.count)
    return tuple(replace(example, start=number * example.count) for number in range(copies))


def _met(shares: Ordered[Share]) -> list[tuple[Share, int, int]]:
    """Every image that a share has places of: the share, its first row in the step, and the image's index."""
    found, first = list[tuple[Share, int, int]](), 0
    for share in shares:
        if share.sequence.view is not None:
            for index, media in enumerate(share.sequence.request.media):
                if media.start < share.end and share.start < media.end:
                    found.append((share, first, index))
        first += share.width
    return found


def _whole(shares: Ordered[Share], met: Ordered[tuple[Share, int, int]]) -> tuple[SeenWhole, ...]:
    """Of the images in ``met``, those whose tokens see each other."""
    numbers = {id(share): number for number, share in enumerate(shares)}
    found = []
    for share, first, index in met:
        if _view(share).whole:
            media = share.sequence.request.media[index]
            row = first + media.start - share.start
            found.append(SeenWhole(sequence=numbers[id(share)], row=row, place=media.start, count=media.count))
    return tuple(found)


def _look(model: Model, met: Ordered[tuple[Share, int, int]]) -> None:
    """Let the model see what nobody has kept, all in one call."""
    wanted = [(share, index) for share, _, index in met if index not in _view(share).states]
    if not wanted:
        return
    assert isinstance(model, Seeing)
    media = [share.sequence.request.media[index] for share, index in wanted]
    found = (states for group in _groups(media) for states in model.see(group))
    for (share, index), one, states in zip(wanted, media, found, strict=True):
        if len(states) != one.count:
            raise RuntimeError(
                f"{type(model).__name__}.see gave {len(states)} states for an image of {one.count} places"
            )
        _view(share).states[index] = states


def _take_given(met: Ordered[tuple[Share, int, int]], device: torch.device) -> None:
    """Bring states that need not be seen to the device."""
    for share, _, index in met:
        media, view = share.sequence.request.media[index], _view(share)
        if media.is_given and index not in view.states:
            (states,) = media.arrays.values()
            view.states[index] = upload_array(states, device)


def _groups(media: Ordered[Media]) -> Iterator[list[Media]]:
    """What is seen together, in order."""
    group, places = list[Media](), 0
    for one in media:
        if group and places + one.count > AT_ONCE:
            yield group
            group, places = [], 0
        group.append(one)
        places += one.count
    yield group


def _coordinates(shares: Ordered[Share]) -> Tensor:
    """``[R, T]`` of the whole step; where there is one position for a token, all rows have it."""
    height = max(len(one) for share in shares if (one := _rows(share)) is not None)
    parts = []
    for share in shares:
        given, prompt = _rows(share), share.sequence.prompt_len
        if given is not None and share.end <= prompt:
            parts.append(given[:, share.start : share.end])
        else:
            parts.append(torch.tensor(list(share.positions)).expand(height, -1))
            if given is not None and share.start < prompt:  # resumed: what was generated follows the prompt
                parts[-1] = torch.cat([given[:, share.start :], parts[-1][:, prompt - share.start :]], dim=1)
    return torch.cat(parts, dim=1)


def _rows(share: Share) -> Tensor | None:
    view = share.sequence.view
    return None if view is None else view.coordinates


def _view(share: Share) -> View:
    view = share.sequence.view
    assert view is not None
    return view
