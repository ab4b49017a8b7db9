"""The events: blocks of tokens that enter the prefix cache, and blocks that leave it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scope:
    """Facts that all blocks of a prefix share, besides their tokens."""

    adapter: str | None = None
    """Name of the LoRA adapter that they were computed with."""
    keys: tuple[str, ...] = ()
    """Digests that separate blocks with equal tokens: of a salt, and of images."""


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Consecutive blocks of one prefix are in the cache."""

    hashes: Sequence[int]
    parent: int | None
    """Hash of the block before the first one; ``None`` at the beginning of a prompt."""
    tokens: array[int]
    """Tokens of all blocks, ``block_size`` of each."""
    scope: Scope


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks are not in the cache any more."""

    hashes: Sequence[int]


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The cache is empty."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True)
class _Block:
    parent: int | None
    tokens: array[int]
    scope: Scope


class CachedBlocks:
    """The blocks that events have left in the cache, each after the one that it continues."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def apply(self, events: Iterable[Event]) -> None:
        """Apply events in their order."""
        for event in events:
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                for removed in event.hashes:
                    self._blocks.pop(removed, None)
            else:
                self._blocks.clear()

    def _store(self, event: BlockStored) -> None:
        size, parent = len(event.tokens) // len(event.hashes), event.parent
        for number, stored in enumerate(event.hashes):
            self._blocks.pop(stored, None)
            self._blocks[stored] = _Block(parent, event.tokens[number * size : (number + 1) * size], event.scope)
            parent = stored

    def events(self) -> Iterator[Event]:
        """Yield events that lead to the same blocks, whatever was known before."""
        yield AllBlocksCleared()
        run: list[int] = []
        first = _Block(None, array("q"), Scope())
        tokens = array("q")
        for number, block in self._blocks.items():
            if run and (block.parent != run[-1] or block.scope != first.scope):
                yield BlockStored(run, first.parent, tokens, first.scope)
                run = []
            if not run:
                first, tokens = block, array("q")
            run.append(number)
            tokens.extend(block.tokens)
        if run:
            yield BlockStored(run, first.parent, tokens, first.scope)
