"""The layout of one prompt with images or input embeddings: positions, cache tokens, and encoded images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

from torch import Tensor

from sglang_plug import PendingTensor, Request


@dataclass(slots=True)
class MediaLayout:
    """Positions of the tokens of one sequence, and the embeddings of its encoded images. A ``PromptLayout``."""

    cache_tokens: list[int]
    """The prompt's tokens, with numbers outside the vocabulary that identify the content of images."""
    mrope_positions: Tensor | None = None
    """``[R, N]`` int64 on the host, for ``N`` tokens of the prompt; ``None``: positions are token indices."""
    prompt: list[int] = field(default_factory=list)
    """Positions of the prompt's tokens: the first row of ``mrope_positions``; empty without them."""
    shift: int = 0
    """Offset between the index and the position of a token after the prompt."""
    whole: tuple[range, ...] = ()
    """Token ranges of the images that must each be computed in one step."""
    states: dict[int, Tensor] = field(default_factory=dict)
    """States of the images that the computed part of the prompt has not passed yet, by image index."""

    loads: dict[int, PendingTensor] = field(default_factory=dict)
    """States that are being loaded, or were, by image index."""

    def positions(self, start: int, end: int) -> Iterable[int]:
        """Return the positions of the tokens from index ``start`` to before ``end``."""
        if not self.prompt:
            return range(start, end)
        return chain(self.prompt[start:end], range(max(start, len(self.prompt)) + self.shift, end + self.shift))

    def chunk_end(self, end: int) -> int:
        """Return where a chunk that should end before ``end`` must end: after an image that it may not split."""
        return next((image.stop for image in self.whole if image.start < end < image.stop), end)

    def reusable(self, length: int) -> int:
        """Return how much of a cached prefix of ``length`` is usable: up to an image that it would split."""
        return next((image.start for image in self.whole if image.start < length < image.stop), length)


def cache_tokens(request: Request) -> list[int]:
    """Return the tokens of a prompt, with numbers outside the vocabulary that identify the content of images."""
    keys = list(request.tokens)
    for media in request.media:
        keys[media.start : media.end] = media.keys()
    return keys
