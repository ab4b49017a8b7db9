"""What the largest step and the graphs take of a device's memory, found by trying them with a small KV pool.

Whatever is left is the real pool's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from sglang_plug.media import Media
from sglang_plug.model import Model
from sglang_plug.recurrent import RESERVED
from sglang_plug.request import LogprobOptions, Request
from sglang_plug.sampling import SamplingParams
from sglang_plug.specs import Task

from .graphs import DecodeGraphs
from .memory import DeviceMemory, is_out_of_memory
from .prefill_graphs import PrefillGraphs
from .runner import Runner
from .sequence import Sequence
from .shares import Share
from .sight import view_of
from .slots import SlotPool
from .states import HeldState

FURTHER_GRAPHS = 3
"""Captured after the largest one, to see what each more takes."""
DRAWN = SamplingParams(temperature=0.8, top_p=0.9, min_p=0.01, frequency_penalty=0.1, max_new_tokens=1)
"""Asks for what takes the most memory of a sampler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestSteps:
    """Steps that take as much memory as any may: many new tokens, of few sequences and of many.

    Args:
        tokens: most new tokens of one step.
        longest: tokens of the longest prompt.
        sequences: most of them in one step.
        task: what they are computed for.
        vocabulary: tokens are below it.
        page_size: slots in a page.
        media: images that the first prompt begins with; a step that may not cut them gets longer by one of them.
        states: the model has recurrent ones; all sequences share a row.
    """

    tokens: int
    longest: int
    sequences: int
    task: Task
    vocabulary: int
    page_size: int
    media: tuple[Media, ...] = ()
    states: bool = False

    def lengths(self) -> list[list[int]]:
        """Prompt lengths of each step."""
        few = min(math.ceil(self.tokens / self.longest), self.sequences)
        many = min(self.sequences, self.tokens)
        tokens = min(self.tokens, few * self.longest)
        return [_divided(tokens, count) for count in dict.fromkeys((few, many))]

    @property
    def slots(self) -> int:
        """KV slots that a step needs."""
        page = self.page_size
        image = max((one.count for one in self.media), default=0)
        return image + max(sum(math.ceil(length / page) * page for length in lengths) for lengths in self.lengths())

    def run(self, runner: Runner) -> None:
        """Run them; ``runner`` has a pool of at least ``slots``."""
        generates = self.task == "generate"
        for lengths, start in zip(self.lengths(), (0, -1), strict=False):
            runner.run(self._shares(lengths, LogprobOptions(start=start, top=1) if generates else None))
        if self.media:
            self._see(runner)

    def _see(self, runner: Runner) -> None:
        """Run a step that meets the images."""
        length, *others = self.lengths()[0]
        tokens = tuple(place % self.vocabulary for place in range(max(length, self.media[-1].end + 1)))
        request = Request(id="images", tokens=tokens, params=DRAWN, task=self.task, media=self.media)
        sequence = self._sequence(request)
        sequence.view = view_of(runner.model, request)
        pool, count = SlotPool(self.slots, self.page_size), sequence.count(0, length)
        pool.extend(sequence.slots, count)
        runner.run([Share(sequence, count), *self._shares(others, None, pool)])

    def _shares(
        self, lengths: Ordered[int], logprobs: LogprobOptions | None, pool: SlotPool | None = None
    ) -> list[Share]:
        pool = SlotPool(self.slots, self.page_size) if pool is None else pool
        shares = []
        for index, length in enumerate(lengths):
            tokens = tuple((index + place) % self.vocabulary for place in range(length))
            request = Request(id=str(index), tokens=tokens, params=DRAWN, logprobs=logprobs, task=self.task)
            sequence = self._sequence(request)
            pool.extend(sequence.slots, length)
            shares.append(Share(sequence, length))
        return shares

    def _sequence(self, request: Request) -> Sequence:
        sequence = Sequence.of(request, self.longest)
        if self.states:
            sequence.held = HeldState(RESERVED, None)
        return sequence


def graph_bytes(make: Callable[[], DecodeGraphs | PrefillGraphs], model: Model, memory: DeviceMemory) -> int:
    """What all graphs of ``model`` will take: the largest, and each further one as much as the next ones do.

    They share their memory, so that further ones take little more than their descriptions. Zero if the model cannot be
    captured. Raises what says that memory does not suffice.
    """
    memory.release()
    before = memory.free()
    graphs = make()
    sizes = graphs.sizes[::-1]
    try:
        graphs.capture_sizes(model, sizes[:1])
        first = _taken(memory, before)
        further = sizes[1 : 1 + FURTHER_GRAPHS]
        graphs.capture_sizes(model, further)
        each = max(0, _taken(memory, before) - first) / max(1, len(further))
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return 0  # the real capture will tell
    return first + math.ceil(each * (len(sizes) - 1))


def _taken(memory: DeviceMemory, before: int) -> int:
    memory.release()
    return max(0, before - memory.free())


def _divided(total: int, count: int) -> list[int]:
    """``count`` numbers that differ by at most one and make ``total``."""
    return [total // count + (index < total % count) for index in range(count)]
