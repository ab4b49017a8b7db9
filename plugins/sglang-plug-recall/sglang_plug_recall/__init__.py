"""Drafts from outputs that are over: whoever asks for nearly the same again gets nearly the same answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sglang_plug import Drafter, DrafterSpec, SequenceDrafter, hookimpl

api_version = 1


@hookimpl
def register_drafters() -> Iterator[DrafterSpec]:
    yield DrafterSpec(
        name="recall",
        target=f"{__name__}:RecallDrafter",
        settings=f"{__name__}:Settings",
        summary="what followed the last tokens in outputs that are over",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``--set recall.KEY=VALUE``."""

    match: int = 4
    """Tokens that an output must have in common with an earlier one before it is expected to go on like it."""
    tokens: int = 100_000
    """Of outputs that are remembered; the oldest are forgotten. Each takes about 250 bytes."""

    def __post_init__(self) -> None:
        if self.match < 1 or self.tokens < 0:
            raise ValueError(f"match is {self.match} and tokens {self.tokens}, but must be at least 1 and 0")


Key = tuple[str, tuple[int, ...]]
"""Whose they are, and some tokens in a row."""


class RecallDrafter(Drafter):
    """Remembers outputs of each salt, and where in them any ``match`` tokens stand."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._places: dict[Key, tuple[list[int], int]] = {}  # where something follows: an output, and the place
        self._outputs = deque[tuple[str, list[int]]]()
        self._size = 0

    def begin(self, prompt: Sequence[int], *, salt: str) -> RecalledSequence:
        """The end of the prompt counts, so that a first token may bring an answer back."""
        return RecalledSequence(self, prompt[-self.settings.match :], salt)

    def find(self, salt: str, last: Sequence[int], most: int) -> Sequence[int]:
        """What followed ``last`` when an output last had it, at most ``most`` tokens."""
        tokens, place = self._places.get((salt, tuple(last)), ([], 0))
        return tokens[place : place + most]

    def learn(self, salt: str, tokens: list[int]) -> None:
        """Remember an output."""
        for key, place in self._keys(salt, tokens):
            self._places[key] = tokens, place
        self._outputs.append((salt, tokens))
        self._size += len(tokens)
        while self._size > self.settings.tokens:
            self._forget(*self._outputs.popleft())

    def _forget(self, salt: str, tokens: list[int]) -> None:
        self._size -= len(tokens)
        for key, _ in self._keys(salt, tokens):
            if key in self._places and self._places[key][0] is tokens:
                del self._places[key]

    def _keys(self, salt: str, tokens: Sequence[int]) -> Iterator[tuple[Key, int]]:
        size = self.settings.match
        for place in range(size, len(tokens)):
            yield (salt, tuple(tokens[place - size : place])), place


class RecalledSequence(SequenceDrafter):
    """An output that may be like an earlier one."""

    def __init__(self, owner: RecallDrafter, head: Sequence[int], salt: str) -> None:
        self._owner, self._tokens, self._salt = owner, list(head), salt

    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        """What followed the last tokens."""
        self._tokens += tokens
        return self._owner.find(self._salt, self._tokens[-self._owner.settings.match :], most)

    def end(self, tokens: Sequence[int]) -> None:
        """Remember it."""
        self._owner.learn(self._salt, [*self._tokens, *tokens])
