"""Measures the memory of the largest step and of the executors by running them with a small KV pool.

The remaining memory is used for the real pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace

from sglang_plug.contracts.extension.execution import StepExecutor
from sglang_plug.contracts.model.model import Model
from sglang_plug.contracts.request import LogprobOptions, Request, Task
from sglang_plug.contracts.sampling_params import SamplingParams
from sglang_plug.engine.execution.runner import Runner
from sglang_plug.engine.extensions.request_points import RequestPoints
from sglang_plug.engine.extensions.server_points import StartPoints
from sglang_plug.engine.memory.budget import DeviceMemory
from sglang_plug.engine.memory.kv_slots import SlotPool
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.system.out_of_memory import is_out_of_memory

FURTHER_SIZES = 3
"""Number of sizes captured after the largest one, to measure the memory of each further one."""
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, min_p=0.01, frequency_penalty=0.1, max_new_tokens=1)
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
        largest: admitted sequences of step extensions; each is the first one of a further step.
    """

    tokens: int
    longest: int
    sequences: int
    task: Task
    vocabulary: int
    page_size: int
    largest: tuple[Sequence, ...] = ()

    def lengths(self) -> list[list[int]]:
        """Return the prompt lengths of each step."""
        few = min(math.ceil(self.tokens / self.longest), self.sequences)
        many = min(self.sequences, self.tokens)
        tokens = min(self.tokens, few * self.longest)
        return [_divided(tokens, count) for count in dict.fromkeys((few, many))]

    @property
    def slots(self) -> int:
        """Number of KV slots that a step needs."""
        page, first = self.page_size, self.lengths()[0][0]
        longer = max((sequence.count(0, first) - first for sequence in self.largest), default=0)
        largest = max(sum(math.ceil(length / page) * page for length in lengths) for lengths in self.lengths())
        return math.ceil(longer / page) * page + largest

    def run(self, runner: Runner) -> None:
        """Run the steps; ``runner`` must have a pool of at least ``slots``."""
        generates = self.task == "generate"
        for lengths, start in zip(self.lengths(), (0, -1), strict=False):
            runner.run(self._chunks(lengths, LogprobOptions(start=start, top=1) if generates else None))
        for sequence in self.largest:
            self._run_with(sequence, runner)

    def with_extensions(self, start: StartPoints, requests: RequestPoints) -> LargestSteps:
        """Return the same steps, and one for the largest request of each step extension; see ``ProfilingPhase``."""
        largest = (largest_request(self.longest - 1) for largest_request in start.largest_request)
        sequences = [self._sequence(self._lengthened(request)) for request in largest if request is not None]
        for sequence in sequences:
            requests.admit_sequence(sequence)
        return replace(self, largest=tuple(sequences))

    def _lengthened(self, request: Request) -> Request:
        """Return ``request`` with a prompt that is at least as long as the longest one of the other steps."""
        further = range(len(request.tokens), self.lengths()[0][0])
        tokens = (*request.tokens, *(position % self.vocabulary for position in further))
        return replace(request, tokens=tokens, params=SAMPLED, task=self.task)

    def _run_with(self, sequence: Sequence, runner: Runner) -> None:
        """Run a step that computes ``sequence`` and further prompts."""
        length, *others = self.lengths()[0]
        pool, count = SlotPool(self.slots, self.page_size), sequence.count(0, length)
        pool.extend(sequence.slots, count)
        runner.run([ScheduledChunk(sequence, count), *self._chunks(others, None, pool)])

    def _chunks(
        self, lengths: Ordered[int], logprobs: LogprobOptions | None, pool: SlotPool | None = None
    ) -> list[ScheduledChunk]:
        pool = SlotPool(self.slots, self.page_size) if pool is None else pool
        chunks = []
        for index, length in enumerate(lengths):
            tokens = tuple((index + position) % self.vocabulary for position in range(length))
            request = Request(id=str(index), tokens=tokens, params=SAMPLED, logprobs=logprobs, task=self.task)
            sequence = self._sequence(request)
            pool.extend(sequence.slots, length)
            chunks.append(ScheduledChunk(sequence, length))
        return chunks

    def _sequence(self, request: Request) -> Sequence:
        return Sequence.of(request, self.longest)


def executor_bytes(make: Callable[[], StepExecutor | None], model: Model, memory: DeviceMemory) -> int | None:
    """Estimate the bytes that an executor will take from its largest size and the next few.

    Captures share their memory, so that further ones take little more than their descriptions. Zero if the model cannot
    be captured, ``None`` if there is no executor. Raises errors that say that memory does not suffice.
    """
    memory.release()
    before = memory.free()
    executor = make()
    if executor is None:
        return None
    sizes = list(executor.sizes)[::-1]
    try:
        executor.capture_sizes(model, sizes[:1])
        first = _taken(memory, before)
        further = sizes[1 : 1 + FURTHER_SIZES]
        executor.capture_sizes(model, further)
        each = max(0, _taken(memory, before) - first) / max(1, len(further))
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return 0  # the real capture will log it
    return first + math.ceil(each * max(0, len(sizes) - 1))


def _taken(memory: DeviceMemory, before: int) -> int:
    memory.release()
    return max(0, before - memory.free())


def _divided(total: int, count: int) -> list[int]:
    """Split ``total`` into ``count`` numbers that differ by at most one."""
    return [total // count + (index < total % count) for index in range(count)]
