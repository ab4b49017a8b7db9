"""Steps with extensions have graphs of their own, one variant for each set of extensions with graph inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_plug import ChunkView, GraphPhase
from sglang_plug_backends.cuda_graphs.graph_variants import GraphVariants


class Marks(GraphPhase):
    """An extension with the graph inputs in ``extras``; ``inside`` is set during its captures."""

    def __init__(self, name: str, *, captures: bool = True) -> None:
        self.graph_label, self.version, self.captures = name, 1, captures
        self.inside = False

    @property
    def graph_version(self) -> int:
        return self.version

    def graph_input(self, chunk: ChunkView) -> int | None:
        return chunk[self.graph_label]  # type: ignore[no-any-return, index]

    def capturing(self, numbers: Tensor) -> AbstractContextManager[None] | None:
        return self._marked() if self.captures else None

    @contextmanager
    def _marked(self) -> Iterator[None]:
        self.inside = True
        yield
        self.inside = False


def chunks(**rows: list[int | None]) -> list[Any]:
    return [dict(zip(rows, numbers, strict=True)) for numbers in zip(*rows.values(), strict=True)]


class Bench:
    def __init__(self, *extensions: Marks) -> None:
        self.extensions, self.variants, self.captures = extensions, GraphVariants[str](extensions), 0

    def graph(self, size: int = 2, **rows: list[int | None]) -> str | None:
        numbers = self.variants.numbers(chunks(**rows))
        assert numbers is not None
        return self.variants.get(numbers.variant, size, lambda: self.capture(numbers.variant, size))

    def capture(self, variant: tuple[int, ...], size: int) -> None:
        self.variants.put(variant, size, self.captured, lambda index: torch.zeros(size, dtype=torch.int64))

    def captured(self) -> str:
        self.captures += 1
        return "+".join(extension.graph_label for extension in self.extensions if extension.inside)


def test_the_extensions_with_numbers_are_the_variant() -> None:
    variants = GraphVariants[str]((Marks("a"), Marks("b")))
    numbers = [variants.numbers(chunks(a=[0, 0], b=rows)) for rows in ([0, 0], [0, 3], [None, 0])]
    assert [entry and entry.variant for entry in numbers] == [(), (1,), None]
    both = variants.numbers(chunks(a=[1, 0], b=[0, 3]))
    assert both is not None and both.variant == (0, 1) and both.rows == ([1, 0], [0, 3])
    assert list(variants.alone()) == [(0,), (1,)]


def test_without_extensions_every_step_is_plain() -> None:
    numbers = GraphVariants[str]().numbers(chunks(a=[1]))
    assert numbers is not None and (numbers.variant, numbers.rows) == ((), ())


def test_each_variant_is_captured_inside_its_contexts_and_once() -> None:
    bench = Bench(Marks("a"), Marks("b"))
    for _ in range(2):
        assert bench.graph(a=[1, 0], b=[0, 0]) == "a"
        assert bench.graph(a=[1, 0], b=[0, 1]) == "a+b"
        assert bench.graph(4, a=[0], b=[1]) == "b"
    assert bench.captures == 3 and bench.variants.label((0, 1)) == "a and b"


def test_graphs_of_an_earlier_version_are_captured_again() -> None:
    first, second = Marks("a"), Marks("b")
    bench = Bench(first, second)
    for size in (2, 4):
        bench.graph(size, a=[1], b=[0])
    bench.graph(a=[0], b=[1])
    first.version += 1
    for size in (2, 4, 4):
        assert bench.graph(size, a=[1], b=[0]) == "a"
    assert bench.graph(a=[0], b=[1]) == "b"
    assert bench.captures == 5
    bench.variants.forget()
    assert bench.graph(a=[0], b=[1]) == "b" and bench.captures == 6


@pytest.mark.parametrize("captures", [False, True])
def test_what_cannot_be_captured_is_not_tried_again(captures: bool) -> None:
    bench = Bench(Marks("a", captures=captures), Marks("b"))
    if captures:
        bench.graph(a=[1], b=[0])
        bench.variants.give_up((0,))
    before = bench.captures
    for _ in range(2):
        assert bench.graph(a=[1], b=[0]) is None
    assert bench.captures == before and list(bench.variants.alone()) == [(1,)]
    assert bench.graph(a=[0], b=[1]) == "b"
    bench.variants.forget()
    bench.extensions[0].captures = True
    assert bench.graph(a=[1], b=[0]) == "a", "new weights may be captured"
