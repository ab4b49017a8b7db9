"""How a model sees one prompt with images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

from torch import Tensor

from sglang_plug.request import Request


@dataclass(slots=True)
class View:
    """Where the tokens of one sequence stand, and what has been seen of its images."""

    length: int
    """Tokens of the prompt."""
    coordinates: Tensor | None
    """``[R, length]`` int64 on the host; ``None``: the model counts places."""
    prompt: list[int]
    """Positions of the prompt's tokens: the first row of ``coordinates``; empty without them."""
    shift: int
    """What is added to the place of a token after the prompt."""
    whole: tuple[range, ...] = ()
    """Places of each image that is computed in one step."""
    states: dict[int, Tensor] = field(default_factory=dict)
    """Of images that the prompt has not passed yet, by their index."""

    def positions(self, start: int, end: int) -> Iterable[int]:
        """Of the tokens from place ``start`` to before ``end``."""
        if not self.prompt:
            return range(start, end)
        return chain(self.prompt[start:end], range(max(start, self.length) + self.shift, end + self.shift))

    def stop(self, end: int) -> int:
        """Where a step ends that was to end before place ``end``: behind an image that it may not cut."""
        return next((image.stop for image in self.whole if image.start < end < image.stop), end)

    def reusable(self, length: int) -> int:
        """How much of a cached prefix of ``length`` can be used: what comes before an image that it would cut."""
        return next((image.start for image in self.whole if image.start < length < image.stop), length)


def prompt_keys(request: Request) -> list[int]:
    """The prompt's tokens, with numbers outside the vocabulary where images are, which tell their content."""
    keys = list(request.tokens)
    for media in request.media:
        keys[media.start : media.end] = media.keys()
    return keys
