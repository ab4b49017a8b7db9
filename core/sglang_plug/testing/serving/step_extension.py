"""Conformance test of step extensions: a scheduler runs with and without one, and a function is the model."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from sglang_plug.contracts.request import Output, Request, RequestError
from sglang_plug.contracts.sampling_params import SamplingParams
from sglang_plug.contracts.serving.cache import Match, PrefixCache
from sglang_plug.contracts.serving.extension import PHASES, AdmissionPhase, SequenceView, StepExtension
from sglang_plug.contracts.serving.scheduling import Waiting
from sglang_plug.engine.extensions.points import extension_points
from sglang_plug.engine.memory.kv_slots import SlotPool
from sglang_plug.engine.scheduling.checked_policy import CheckedPolicy
from sglang_plug.engine.scheduling.scheduled_chunk import ScheduledChunk, StepResult
from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug.engine.scheduling.sequence import Sequence as EngineSequence

VOCABULARY = 16
SLOTS = 160
CHUNK = 12
REQUESTS = 24
MOST_STEPS = 20_000


def check_step_extension(extension: StepExtension, *, seed: int = 0) -> None:
    """Check that ``extension`` keeps the contract while requests arrive, are retracted, aborted and finish.

    It inherits from each phase of which it has methods, the tokens of all outputs are the same as without it, KV slots
    are neither lost nor owned twice, no step is larger than its budget, and ``finished`` is called exactly once for
    each queued request. The extension is built for a vocabulary of 16 tokens; it must not refuse plain requests.
    Raises ``AssertionError`` that names the rule that was broken.
    """
    _check_methods(extension)
    requests = _requests(random.Random(seed))
    expected = _Run(None, requests).outputs(aborts=())
    run = _Run(extension, requests)
    aborted = {request.id for request in requests[::7]}
    outputs = run.outputs(aborts=aborted)
    for id, tokens in expected.items():
        received = outputs.get(id, [])
        wanted = tokens[: len(received)] if id in aborted else tokens
        assert received == wanted, f"request {id}: the tokens are {received}, and without the extension {wanted}"
    for id, count in run.finished.items():
        assert count == 1, f"request {id}: finished() was called {count} times"


def _check_methods(extension: StepExtension) -> None:
    for phase in PHASES:
        points = {name for name in vars(phase) if not name.startswith("_")}
        implemented = points & {name for owner in type(extension).__mro__ for name in vars(owner)}
        assert not implemented or isinstance(extension, phase), (
            f"{type(extension).__name__} has {', '.join(sorted(implemented))} and is not a {phase.__name__}, "
            "so the engine never calls them"
        )


def _requests(generator: random.Random) -> list[Request]:
    requests = []
    for number in range(REQUESTS):
        prompt = tuple(generator.randrange(4) for _ in range(generator.randint(1, 20)))
        params = SamplingParams(max_new_tokens=generator.randint(1, 40), stop_token_ids=(VOCABULARY - 1,), seed=number)
        requests.append(Request(id=str(number), tokens=prompt, params=params))
    return requests


def _next_token(tokens: Sequence[int]) -> int:
    """Return the token that the function in place of a model samples: repetitive, so that drafts are often right."""
    return (tokens[-1] * 5 + len(tokens) // 9) % VOCABULARY


class _Run:
    """Serves requests in a small KV pool, so that sequences are retracted."""

    def __init__(self, extension: StepExtension | None, requests: list[Request]) -> None:
        self.finished: dict[str, int] = {}
        extensions = [_Counter(self.finished)] if extension is None else [extension, _Counter(self.finished)]
        self._points = extension_points(extensions)
        self._scheduler = Scheduler(
            SlotPool(SLOTS, 1),
            _NoCache(1, _Newest(), lambda: 0.0),
            CheckedPolicy(_FirstCome(), "the schedule policy of the test"),
            chunk_size=CHUNK,
            max_running=6,
            extensions=self._points,
        )
        self._requests = requests

    def outputs(self, aborts: Iterable[str]) -> dict[str, list[int]]:
        """Serve all requests; return the tokens of each."""
        scheduler, outputs = self._scheduler, dict[str, list[int]]()
        waiting, pending_aborts = list(self._requests), set(aborts)
        for number in range(MOST_STEPS):
            if waiting and number % 3 == 0:
                self._submit(waiting.pop(0))
            for id in sorted(pending_aborts & outputs.keys()):
                pending_aborts.discard(id)
                scheduler.abort(id)
            if not waiting and not scheduler.busy:
                scheduler.check()
                return outputs
            for output in self._step():
                outputs.setdefault(output.id, []).extend(output.tokens)
        raise AssertionError("the requests do not end")

    def _submit(self, request: Request) -> None:
        sequence = EngineSequence.of(request, SLOTS)
        for admit in self._points.admit:
            try:
                admit(sequence)
            except RequestError as error:
                raise AssertionError(f"a plain request was refused: {error}") from error
        self.finished[request.id] = 0
        self._scheduler.add(sequence)

    def _step(self) -> list[Output]:
        chunks = self._scheduler.plan()
        width = sum(chunk.width for chunk in chunks)
        assert width <= CHUNK, f"a step has {width} tokens, and its budget is {CHUNK}"
        outputs = self._scheduler.commit(chunks, [_result(chunk) for chunk in chunks])
        self._scheduler.check()
        return outputs


def _result(chunk: ScheduledChunk) -> StepResult:
    """Sample behind the chunk, and behind each of its drafts that is what was sampled before it."""
    if not chunk.complete:
        return StepResult()
    tokens = list(chunk.sequence.tokens)
    token = _next_token(tokens)
    accepted: list[tuple[int, None]] = []
    tokens.append(token)
    for draft in chunk.drafts:
        if draft != tokens[-1]:
            break
        tokens.append(_next_token(tokens))
        accepted.append((tokens[-1], None))
    return StepResult(token, accepted_tokens=tuple(accepted))


class _Counter(StepExtension, AdmissionPhase):
    """Counts the calls of ``finished``."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def finished(self, sequence: SequenceView) -> None:
        self._counts[sequence.request.id] += 1


class _FirstCome:
    def order(self, waiting: Sequence[Waiting], match: Any) -> Sequence[Waiting]:
        return waiting


class _Newest:
    def eviction_priority(self, node: Any) -> float:
        return 0.0


class _NoCache(PrefixCache):
    """A prefix cache that keeps nothing."""

    @property
    def size(self) -> int:
        return 0

    @property
    def evictable(self) -> int:
        return 0

    def match(self, tokens: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        return Match((), None)

    def insert(self, tokens: Sequence[int], slots: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        return Match((), None)

    def lock(self, match: Match) -> None: ...

    def unlock(self, match: Match) -> None: ...

    def evict(self, wanted: int) -> list[int]:
        return []

    def reset(self) -> list[int]:
        return []

    def check(self) -> None: ...
