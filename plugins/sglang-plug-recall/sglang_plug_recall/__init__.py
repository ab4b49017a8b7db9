"""Drafts from finished outputs: similar requests get similar answers."""

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
        summary="prompt lookup in finished outputs",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings given as ``--set recall.KEY=VALUE``."""

    match: int = 4
    """Number of tokens that an output must share with an earlier one before its continuation is drafted."""
    tokens: int = 100_000
    """Maximum tokens of remembered outputs; the oldest are dropped. Each takes about 250 bytes."""

    def __post_init__(self) -> None:
        if self.match < 1 or self.tokens < 0:
            raise ValueError(f"match is {self.match} and tokens {self.tokens}, but must be at least 1 and 0")


Key = tuple[str, tuple[int, ...]]
"""Salt and a run of tokens."""


class RecallDrafter(Drafter):
    """Drafter that remembers outputs of each salt, indexed by runs of ``match`` tokens."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._continuations: dict[Key, tuple[list[int], int]] = {}  # output and position of the continuation
        self._outputs = deque[tuple[str, list[int]]]()
        self._size = 0

    def begin(self, prompt: Sequence[int], *, salt: str) -> RecalledSequence:
        """Start a sequence; the end of the prompt is used too, so that the first token can be drafted."""
        return RecalledSequence(self, prompt[-self.settings.match :], salt)

    def find(self, salt: str, last: Sequence[int], max_draft_tokens: int) -> Sequence[int]:
        """Return at most ``max_draft_tokens`` tokens that followed the latest occurrence of ``last``."""
        tokens, position = self._continuations.get((salt, tuple(last)), ([], 0))
        return tokens[position : position + max_draft_tokens]

    def learn(self, salt: str, tokens: list[int]) -> None:
        """Remember an output."""
        for key, position in self._keys(salt, tokens):
            self._continuations[key] = tokens, position
        self._outputs.append((salt, tokens))
        self._size += len(tokens)
        while self._size > self.settings.tokens:
            self._forget(*self._outputs.popleft())

    def _forget(self, salt: str, tokens: list[int]) -> None:
        self._size -= len(tokens)
        for key, _ in self._keys(salt, tokens):
            if key in self._continuations and self._continuations[key][0] is tokens:
                del self._continuations[key]

    def _keys(self, salt: str, tokens: Sequence[int]) -> Iterator[tuple[Key, int]]:
        size = self.settings.match
        for position in range(size, len(tokens)):
            yield (salt, tuple(tokens[position - size : position])), position


class RecalledSequence(SequenceDrafter):
    """Sequence that may resemble an earlier output."""

    def __init__(self, owner: RecallDrafter, head: Sequence[int], salt: str) -> None:
        self._owner, self._tokens, self._salt = owner, list(head), salt

    def propose(self, tokens: Sequence[int], max_draft_tokens: int) -> Sequence[int]:
        """Return the tokens that followed the last ones earlier."""
        self._tokens += tokens
        return self._owner.find(self._salt, self._tokens[-self._owner.settings.match :], max_draft_tokens)

    def end(self, tokens: Sequence[int]) -> None:
        """Remember the finished output."""
        self._owner.learn(self._salt, [*self._tokens, *tokens])
