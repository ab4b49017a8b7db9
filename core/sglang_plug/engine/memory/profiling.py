"""Measures the memory of the largest step and of the graphs by running them with a small KV pool.

The remaining memory is used for the real pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from sglang_plug.contracts.model.model import Model
from sglang_plug.contracts.model.recurrent_state import RESERVED
from sglang_plug.contracts.request import LogprobOptions, Request
from sglang_plug.contracts.sampling_params import SamplingParams
from sglang_plug.contracts.text.media import Media
from sglang_plug.engine.cuda_graphs.decode_graphs import DecodeGraphs
from sglang_plug.engine.cuda_graphs.prefill_graphs import PrefillGraphs
from sglang_plug.engine.execution.runner import Runner
from sglang_plug.engine.multimodal.image_inputs import view_of
from sglang_plug.engine.recurrent_state.state_rows import HeldState
from sglang_plug.engine.scheduling.scheduled_chunk import ScheduledChunk
from sglang_plug.engine.scheduling.sequence import Sequence
from sglang_plug.plugins.specs import Task
from sglang_plug.system.out_of_memory import is_out_of_memory

from .budget import DeviceMemory
from .kv_slots import SlotPool

FURTHER_GRAPHS = 3
"""Number of graphs captured after the largest one, to measure the memory of each further one."""
DRAWN = SamplingParams(temperature=0.8, top_p=0.9, min_p=0.01, frequency_penalty=0.1, max_new_tokens=1)
"""Sampling parameters that need the most memory in the sampler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestSteps:
    """The steps with the largest memory use: many new tokens, of few sequences and of many.

    Args:
        tokens: largest number of new tokens in one step.
        longest: tokens of the longest prompt.
        sequences: largest number of sequences in one step.
        task: the task of the requests.
        vocabulary: number of token ids.
        page_size: slots in a page.
        media: images at the start of the first prompt; a step that may not split them gets longer by one of them.
        states: the model has recurrent states; all sequences share a row.
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
        """Return the prompt lengths of each step."""
        few = min(math.ceil(self.tokens / self.longest), self.sequences)
        many = min(self.sequences, self.tokens)
        tokens = min(self.tokens, few * self.longest)
        return [_divided(tokens, count) for count in dict.fromkeys((few, many))]

    @property
    def slots(self) -> int:
        """Number of KV slots that a step needs."""
        page = self.page_size
        image = max((media.count for media in self.media), default=0)
        return image + max(sum(math.ceil(length / page) * page for length in lengths) for lengths in self.lengths())

    def run(self, runner: Runner) -> None:
        """Run the steps; ``runner`` must have a pool of at least ``slots``."""
        generates = self.task == "generate"
        for lengths, start in zip(self.lengths(), (0, -1), strict=False):
            runner.run(self._chunks(lengths, LogprobOptions(start=start, top=1) if generates else None))
        if self.media:
            self._see(runner)

    def _see(self, runner: Runner) -> None:
        """Run a step that computes the images."""
        length, *others = self.lengths()[0]
        tokens = tuple(place % self.vocabulary for place in range(max(length, self.media[-1].end + 1)))
        request = Request(id="images", tokens=tokens, params=DRAWN, task=self.task, media=self.media)
        sequence = self._sequence(request)
        sequence.view = view_of(runner.model, request)
        pool, count = SlotPool(self.slots, self.page_size), sequence.count(0, length)
        pool.extend(sequence.slots, count)
        runner.run([ScheduledChunk(sequence, count), *self._chunks(others, None, pool)])

    def _chunks(
        self, lengths: Ordered[int], logprobs: LogprobOptions | None, pool: SlotPool | None = None
    ) -> list[ScheduledChunk]:
        pool = SlotPool(self.slots, self.page_size) if pool is None else pool
        chunks = []
        for index, length in enumerate(lengths):
            tokens = tuple((index + place) % self.vocabulary for place in range(length))
            request = Request(id=str(index), tokens=tokens, params=DRAWN, logprobs=logprobs, task=self.task)
            sequence = self._sequence(request)
            pool.extend(sequence.slots, length)
            chunks.append(ScheduledChunk(sequence, length))
        return chunks

    def _sequence(self, request: Request) -> Sequence:
        sequence = Sequence.of(request, self.longest)
        if self.states:
            sequence.held = HeldState(RESERVED, None)
        return sequence


def graph_bytes(make: Callable[[], DecodeGraphs | PrefillGraphs], model: Model, memory: DeviceMemory) -> int:
    """Estimate the bytes that all graphs of ``model`` will take from the largest one and the next few.

    Graphs share their memory, so that further ones take little more than their descriptions. Zero if the model cannot
    be captured. Raises errors that say that memory does not suffice.
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
        return 0  # the real capture will log it
    return first + math.ceil(each * (len(sizes) - 1))


def _taken(memory: DeviceMemory, before: int) -> int:
    memory.release()
    return max(0, before - memory.free())


def _divided(total: int, count: int) -> list[int]:
    """Split ``total`` into ``count`` numbers that differ by at most one."""
    return [total // count + (index < total % count) for index in range(count)]
