"""The names that checkpoints may have for the modules of a model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import product

from .quantization import Matrix


def checkpoint_paths(
    path: str, packed: Mapping[str, tuple[str, str | None]], prefixes: Mapping[str, str], shards: Collection[str]
) -> dict[str, str | None]:
    """Return the names of the module ``path``, ours first, with the one of ``shards`` that each belongs to.

    See ``Model.checkpoint_paths``.
    """
    *parents, last = path.split(".")
    choices = [[part, *(alias for alias, own in packed.items() if own == (part, None))] for part in parents]
    names: dict[str, str | None] = {last: None}
    for alias, (ours, shard) in packed.items():
        if ours == last and (shard is None or shard in shards):
            names[alias] = shard
    paths = {".".join((*parts, name)): shard for name, shard in names.items() for parts in product(*choices)}
    return paths | {
        prefix + name.removeprefix(ours): shard
        for name, shard in paths.items()
        for prefix, ours in prefixes.items()
        if name.startswith(ours)
    }


def with_other_names(matrix: Matrix, paths: Callable[[str], Iterable[str]]) -> Matrix:
    """Return the description with all names of the matrix and its parts; ``paths`` returns those of a path."""
    names = {name: tuple(paths(name))[1:] for name in (matrix.name, *matrix.checkpoint_names)}
    return replace(matrix, other_names={name: others for name, others in names.items() if others})
