"""The conformance test of step extensions accepts the built-in ones and names the faults of others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from sglang_plug import (
    AdmissionPhase,
    AllowedTokens,
    BlockingRequest,
    CachePhase,
    ChunkView,
    Finish,
    ForwardBatch,
    GraphPhase,
    HoldPhase,
    InputPhase,
    MemoryPhase,
    MemoryRequest,
    ModelPhase,
    OutputPhase,
    PendingMask,
    PendingTensor,
    PlanningPhase,
    ProfilingPhase,
    PromptLayout,
    RankPhase,
    RankStep,
    ReadySequence,
    Request,
    RequestError,
    SamplingPhase,
    SequenceView,
    ServicePhase,
    StatePhase,
    StateShape,
    StaticInputPhase,
    StepExtension,
    StepPlan,
    StoredStatePhase,
    TensorStore,
    TensorStorePhase,
    TokenDecision,
    WatchdogPhase,
)
from sglang_plug.testing import check_step_extension
from sglang_plug_backends.ngram.drafter import NGramDrafter
from sglang_plug_backends.ngram.settings import NGramSettings
from sglang_plug_backends.speculation.extension import Speculation


def test_speculation_keeps_the_contract() -> None:
    drafter = NGramDrafter(NGramSettings())
    check_step_extension(Speculation(drafter, name="ngram", max_draft_tokens=4, step_tokens=8, vocabulary=16))


def test_an_extension_without_any_point_keeps_the_contract() -> None:
    check_step_extension(StepExtension())


class WrongBudget(StepExtension, PlanningPhase):
    """Adds more drafts than the step has room for."""

    def plan(self, step: StepPlan) -> None:
        for index, chunk in enumerate(step.chunks):
            if chunk.complete and chunk.sequence.generated:
                step.add_drafts(index, (0,) * 20)


class Editor(StepExtension, OutputPhase, PlanningPhase):
    """Changes the tokens of sequences."""

    def plan(self, step: StepPlan) -> None:
        for chunk in step.chunks:
            tokens = chunk.sequence.tokens
            assert isinstance(tokens, list)
            if chunk.sequence.generated > 1:
                tokens[-1] = 3


class Unreachable(StepExtension):
    """Defines a method of a phase that is not among its base classes."""

    def plan(self, step: StepPlan) -> None: ...


class Surrounds(StepExtension, ModelPhase):
    def context(self, chunks: Sequence[ChunkView], query_lens: Sequence[int]) -> AbstractContextManager[None] | None:
        return nullcontext()


class Replayed(Surrounds, GraphPhase):
    def graph_input(self, chunk: ChunkView) -> int | None:
        return 0


class GraphsWithoutRankStep(Surrounds, GraphPhase, RankPhase):
    def graph_input(self, chunk: ChunkView) -> int | None:
        return None

    def rank_step(self, chunks: Sequence[ChunkView], batch: ForwardBatch) -> RankStep | None:
        return None


class Layout:
    """A prompt layout with wrong positions, and with one other fault, ``wrong``."""

    def __init__(self, tokens: Sequence[int], wrong: str = "") -> None:
        self.cache_tokens = tokens[1:] if wrong == "tokens" else tokens
        self.length, self.wrong = len(tokens), wrong

    def positions(self, start: int, end: int) -> Iterable[int]:
        return range(end)  # positions of all tokens, not only from ``start`` on

    def chunk_end(self, end: int) -> int:
        return {"end": end - 1, "inside": min(end + 1, self.length)}.get(self.wrong, end)

    def reusable(self, length: int) -> int:
        return length + 1 if self.wrong == "reusable" else length


class GoodLayout(Layout):
    """A prompt layout with correct positions."""

    def positions(self, start: int, end: int) -> Iterable[int]:
        return range(start, end)


class LaysOut(StepExtension, AdmissionPhase):
    def __init__(self, layout: type[Layout], wrong: str = "") -> None:
        self.kind, self.wrong = layout, wrong

    def layout(self, sequence: SequenceView) -> PromptLayout:
        return self.kind(list(sequence.tokens), self.wrong)


class ChangesTokens(StepExtension, InputPhase):
    """Changes the input tokens of a step."""

    def prepare(self, chunks: Sequence[ChunkView], batch: ForwardBatch) -> None:
        batch.input_ids = batch.input_ids + 1


class Forgets(StepExtension, AdmissionPhase, InputPhase):
    """Fails for sequences that were never admitted, such as those of memory profiling."""

    def admit(self, sequence: SequenceView) -> None:
        sequence.extras[self] = 1

    def prepare(self, chunks: Sequence[ChunkView], batch: ForwardBatch) -> None:
        assert all(self in chunk.sequence.extras for chunk in chunks), "an unknown sequence"


class NoNumber(StepExtension, StaticInputPhase):
    def static_input(self, chunk: ChunkView) -> int:
        return -1


class Greedy(StepExtension, MemoryPhase):
    """Requests more memory than any machine has."""

    def memory_request(self, room: float | None) -> MemoryRequest:
        return MemoryRequest(name="everything", bytes=1 << 40, advice="buy more")


class Long(StepExtension, ProfilingPhase):
    def largest_request(self, tokens: int) -> Request:
        return Request(id="long", tokens=(0,) * (tokens + 1))


class Owner(StepExtension, StatePhase, CachePhase):
    """Owns a row for each running sequence, and has the fault ``wrong``."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong, self.free, self.owned = wrong, 4, 0

    def reusable(self, sequence: SequenceView, length: int) -> int:
        return length + 1 if self.wrong == "reusable" else length

    def acquire(self, sequence: SequenceView, start: int, cached: int) -> bool:
        if self.free == 0:
            return False
        self.free -= 1
        self.owned += 1
        sequence.extras[self] = 1
        return True

    def chunk_end(self, sequence: SequenceView, start: int, end: int) -> int:
        return start if self.wrong == "end" else max(start + 1, end - 1)

    def release(self, sequence: SequenceView, keep: bool) -> int | None:
        row = sequence.extras.pop(self)
        self.owned -= row
        if self.wrong != "leak" or sequence.computed:
            self.free += row
        return len(sequence.tokens) + 1 if self.wrong == "length" else None

    def check(self) -> None:
        assert self.free + self.owned == 4, "a row is lost"


class Polls(StepExtension, ServicePhase):
    """Returns an idle timeout of zero, so that an idle engine polls without a pause."""

    def idle_timeout(self) -> float | None:
        return 0.0


class Saver(StepExtension, StatePhase, StoredStatePhase, CachePhase):
    """Saves a state for each prefix that is restored, and has the fault ``wrong``."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong
        self.saved: dict[tuple[str, tuple[int, ...]], Sequence[Tensor]] = {}

    def key(self, sequence: SequenceView, length: int) -> tuple[str, tuple[int, ...]]:
        return "" if self.wrong == "tenant" else sequence.salt, tuple(sequence.keys(0, length))

    def reusable(self, sequence: SequenceView, length: int) -> int:
        lengths = [size for size in range(length + 1) if self.key(sequence, size) in self.saved]
        return 0 if self.wrong == "unknown" else max(lengths, default=0)

    def stored_tensors(self, multiple: int) -> Sequence[StateShape]:
        return [StateShape(shape=(3, 2), dtype=None if self.wrong == "dtype" else torch.bfloat16)]

    def copy_state(self, sequence: SequenceView, length: int) -> Sequence[Tensor]:
        tensors = self.saved.get(self.key(sequence, length), ())
        if self.wrong == "invented":
            return [torch.zeros(3, 2, dtype=torch.bfloat16)]
        return [-tensor for tensor in tensors] if self.wrong == "changed" else tensors

    def restore_state(self, sequence: SequenceView, length: int, tensors: Sequence[Tensor]) -> bool:
        self.saved[self.key(sequence, length)] = tensors
        return True

    def reset(self) -> None:
        if self.wrong != "kept":
            self.saved.clear()


class Offers(StepExtension, TensorStorePhase):
    """Offers a tensor store with the fault ``wrong``."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong
        self.tensors: dict[tuple[str, bytes], Tensor] = {}

    def tensor_store(self) -> TensorStore:
        return self

    def key(self, sequence: SequenceView, content: bytes) -> tuple[str, bytes]:
        return "" if self.wrong == "tenant" else sequence.salt, b"" if self.wrong == "content" else content

    def put_tensor(self, sequence: SequenceView, content: bytes, tensor: Tensor) -> None:
        self.tensors[self.key(sequence, content)] = -tensor if self.wrong == "changed" else tensor

    def load_tensor(self, sequence: SequenceView, content: bytes, tokens: int) -> PendingTensor | None:
        tensor = self.tensors.get(self.key(sequence, content))
        return None if tensor is None else Loaded(tensor, self.wrong != "endless")


@dataclass
class Loaded:
    """The result of a tensor load."""

    value: Tensor
    done: bool


class Fails(StepExtension, AdmissionPhase):
    """Raises an error at the end of each request."""

    def finished(self, sequence: SequenceView) -> None:
        raise KeyError("finished")


@pytest.mark.planted_bug("step-extension")
@pytest.mark.parametrize(
    ("extension", "message"),
    [
        (WrongBudget(), "its budget is 12"),
        (Editor(), "without the extension"),
        (Unreachable(), "Unreachable has plan and does not inherit from PlanningPhase"),
        (Surrounds(), "Surrounds has context.. and no graph_input"),
        (Replayed(), "numbers of graph_input.. are all 0"),
        (LaysOut(GoodLayout, "tokens"), "cache_tokens has .* tokens, and the prompt"),
        (LaysOut(Layout), "is not a part of"),
        (LaysOut(GoodLayout, "end"), "chunk_end.0. returned -1"),
        (LaysOut(GoodLayout, "inside"), "where no chunk may end"),
        (LaysOut(GoodLayout, "reusable"), "reusable.0. returned 1"),
        (ChangesTokens(), "changed input_ids of the batch"),
        (Forgets(), "an unknown sequence"),
        (NoNumber(), "static_input.. must return a number"),
        (Greedy(), "memory_request.. takes"),
        (Long(), "returned a prompt of 161 tokens"),
        (Owner("reusable"), "reusable.. returned"),
        (Owner("end"), "chunk_end.. returned"),
        (Owner("length"), "release.. returned"),
        (Owner("leak"), "a row is lost"),
        (Saver("dtype"), "must give every dtype"),
        (Saver("invented"), "a state that was not saved"),
        (Saver("unknown"), "saved a state after 8 tokens, and reusable.. returned 0"),
        (Saver("changed"), "did not return the tensors that restore_state.. saved"),
        (Saver("tenant"), "the state of another prefix"),
        (Saver("kept"), "a state after reset"),
        (Offers("tenant"), "of another content, or of a sequence with another salt"),
        (Offers("content"), "of another content, or of a sequence with another salt"),
        (Offers("changed"), "did not return the tensor that was put"),
        (Offers("endless"), "a tensor that is never done"),
        (GraphsWithoutRankStep(), "rank_step.. must return a RankStep for each step with a context"),
        (Polls(), "must return more than 0 seconds"),
    ],
)
def test_a_broken_rule_is_named(extension: StepExtension, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_step_extension(extension, timeout=0.5)


def test_layouts_and_states_that_keep_the_contract() -> None:
    check_step_extension(LaysOut(GoodLayout))
    owner = Owner()
    check_step_extension(owner)
    assert owner.free == 4
    check_step_extension(Saver())
    check_step_extension(Offers())


def test_an_error_of_the_extension_is_raised() -> None:
    with pytest.raises(KeyError, match="finished"):
        check_step_extension(Fails())


def test_state_is_kept_by_sequence() -> None:
    kept: list[int] = []

    class Counting(StepExtension, AdmissionPhase, OutputPhase):
        def admit(self, sequence: SequenceView) -> None:
            sequence.extras[self] = len(kept)
            kept.append(0)

        def finished(self, sequence: SequenceView) -> None:
            kept[sequence.extras[self]] += 1

    check_step_extension(Counting())
    assert kept == [1] * len(kept) and isinstance(kept, Sequence)


class PromptLimit(StepExtension, AdmissionPhase):
    """Refuses prompts of more than 30 tokens."""

    error: type[Exception] = RequestError

    def admit(self, sequence: SequenceView) -> None:
        if sequence.prompt_len > 30:
            raise self.error("the prompt is too long")


class RaisesValueError(PromptLimit):
    error = ValueError


class Unlimited(StepExtension, AdmissionPhase):
    """Refuses no request."""


TOO_LONG = Request(id="100", tokens=(1,) * 31)


def test_an_extension_that_refuses_what_it_must_passes() -> None:
    check_step_extension(PromptLimit(), refused=[TOO_LONG])


@pytest.mark.planted_bug("step-extension")
@pytest.mark.parametrize(
    ("extension", "message"),
    [
        (RaisesValueError(), "request 100 must be refused with RequestError; it raised ValueError: the prompt is too"),
        (Unlimited(), "request 100 must be refused with RequestError"),
    ],
)
def test_an_extension_that_refuses_wrongly_is_named(extension: StepExtension, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_step_extension(extension, refused=[TOO_LONG])


class KeepsTheEnded(StepExtension, AdmissionPhase):
    """Keeps every sequence that has ended."""

    def __init__(self) -> None:
        self.ended: list[SequenceView] = []

    def finished(self, sequence: SequenceView) -> None:
        self.ended.append(sequence)


class ForgetsNoName(StepExtension, AdmissionPhase):
    """Keeps an entry for the id of every request."""

    def __init__(self) -> None:
        self.counts: dict[str, list[int]] = {}

    def admit(self, sequence: SequenceView) -> None:
        self.counts[sequence.request.id] = [sequence.prompt_len]


@pytest.mark.planted_bug("step-extension")
@pytest.mark.parametrize("extension", [KeepsTheEnded(), ForgetsNoName()])
def test_memory_that_grows_with_ended_requests_is_named(extension: StepExtension) -> None:
    with pytest.raises(AssertionError, match="the extension keeps .* bytes of each request that has ended"):
        check_step_extension(extension)


class Even(StepExtension, AdmissionPhase, HoldPhase, SamplingPhase, ServicePhase, WatchdogPhase):
    """Constrains every third output to even tokens; each begins with token 2, and ends after the fifth token.

    It is held for some calls of ``ready``, token 4 is always followed by token 6, and token 8 is rejected although the
    mask allows it.
    """

    def __init__(self) -> None:
        self.held: list[SequenceView] = []
        self.calls = self.rejections = self.forced = 0
        self.started = self.closed = False

    def start(self) -> None:
        self.started = True

    def close(self) -> None:
        self.closed = True

    def constrains(self, request: Request) -> bool:
        return int(request.id) % 3 == 0

    def hold(self, sequence: SequenceView) -> bool:
        if sequence.constrained:
            self.held.append(sequence)
        return sequence.constrained

    def ready(self) -> Sequence[ReadySequence]:
        self.calls += 1
        held, self.held = ([], self.held) if self.calls % 8 else (self.held, [])
        return [self.begun(sequence) for sequence in held]

    def begun(self, sequence: SequenceView) -> ReadySequence:
        return ReadySequence(sequence, (2,) if self.room(sequence) > 0 else ())

    def finished(self, sequence: SequenceView) -> None:
        self.held = [other for other in self.held if other is not sequence]

    def allowed(self, sequences: Sequence[SequenceView], *, asynchronous: bool) -> PendingMask | None:
        rows = [row for row, sequence in enumerate(sequences) if sequence.constrained]
        return Ready(AllowedTokens(rows, self.mask(len(rows)))) if rows else None

    def mask(self, rows: int) -> torch.Tensor:
        return torch.full((rows, 1), 0x5555, dtype=torch.int32)

    def sampled(self, sequences: Sequence[SequenceView], tokens: Sequence[int]) -> Mapping[int, TokenDecision]:
        rows = [row for row, sequence in enumerate(sequences) if sequence.constrained]
        return {row: self.decision(sequences[row], tokens[row]) for row in rows}

    def decision(self, sequence: SequenceView, token: int) -> TokenDecision:
        assert token % 2 == 0
        if token == 8:
            self.rejections += 1
            return TokenDecision(rejected=True)
        forced = (6,) if token == 4 and self.room(sequence) > 0 else ()
        self.forced += len(forced)
        is_end = sequence.generated + 1 + len(forced) >= 5
        return TokenDecision(Finish("stop") if is_end else None, forced=forced)

    @staticmethod
    def room(sequence: SequenceView) -> int:
        return sequence.limit - len(sequence.tokens) - 1


class Ready:
    """A pending mask that is complete already."""

    def __init__(self, allowed: AllowedTokens) -> None:
        self.allowed = allowed

    def result(self) -> AllowedTokens:
        return self.allowed


def test_an_extension_that_constrains_outputs_keeps_the_contract() -> None:
    extension = Even()
    check_step_extension(extension)
    assert extension.started and extension.closed and extension.calls > 8
    assert extension.rejections > 0 and extension.forced > 0 and extension.held == []


class HoldsForEver(Even):
    def ready(self) -> Sequence[ReadySequence]:
        return ()


class NamesTwice(Even):
    def ready(self) -> Sequence[ReadySequence]:
        return [item for item in super().ready() for _ in range(2)]


class NamesTheAborted(Even):
    def finished(self, sequence: SequenceView) -> None: ...


class BeginsTooLong(Even):
    def begun(self, sequence: SequenceView) -> ReadySequence:
        return ReadySequence(sequence, (2,) * (self.room(sequence) + 1))


class BeginsElsewhere(Even):
    def begun(self, sequence: SequenceView) -> ReadySequence:
        return ReadySequence(sequence, (99,))


class EndsWithText(Even):
    def begun(self, sequence: SequenceView) -> ReadySequence:
        return ReadySequence(sequence, finish="stop")  # type: ignore[arg-type]


class Fruitless(Even):
    def begun(self, sequence: SequenceView) -> ReadySequence:
        return ReadySequence(sequence, finish=RequestError("it cannot begin"))


class AllowsNothing(Even):
    def mask(self, rows: int) -> torch.Tensor:
        return torch.zeros(rows, 1, dtype=torch.int32)


class WrongMask(Even):
    def mask(self, rows: int) -> torch.Tensor:
        return torch.ones(rows, 16, dtype=torch.bool)


class LimitsNoRow(Even):
    def allowed(self, sequences: Sequence[SequenceView], *, asynchronous: bool) -> PendingMask | None:
        return Ready(AllowedTokens([len(sequences)], self.mask(1)))


class DecidesForOthers(Even):
    def sampled(self, sequences: Sequence[SequenceView], tokens: Sequence[int]) -> Mapping[int, TokenDecision]:
        return {row: TokenDecision() for row in range(len(sequences))}


class ForcesTooMuch(Even):
    def decision(self, sequence: SequenceView, token: int) -> TokenDecision:
        return TokenDecision(forced=(2,) * (self.room(sequence) + 1))


class RejectsAll(Even):
    def decision(self, sequence: SequenceView, token: int) -> TokenDecision:
        return TokenDecision(rejected=True)


class RejectsAndForces(Even):
    def decision(self, sequence: SequenceView, token: int) -> TokenDecision:
        return TokenDecision(rejected=True, forced=(2,))


class EndsWithErrors(Even):
    def decision(self, sequence: SequenceView, token: int) -> TokenDecision:
        return TokenDecision(error=RequestError("it cannot go on"))


class Blames(Even):
    def blocking_request(self) -> BlockingRequest | None:
        return BlockingRequest("0", "nothing", "you")


class FailsToCheck(Even):
    def check_step(self) -> None:
        raise AssertionError("check_step() fails")


@pytest.mark.planted_bug("step-extension")
@pytest.mark.parametrize(
    ("extension", "message"),
    [
        (HoldsForEver(), "are held and never ready"),
        (NamesTwice(), "names a request that is not held, or has ended"),
        (NamesTheAborted(), "names a request that is not held, or has ended"),
        (BeginsTooLong(), "ready.. forces .* tokens, and there is room for"),
        (BeginsElsewhere(), r"ready.. forces tokens that are not in the vocabulary: \[99\]"),
        (EndsWithText(), "a Finish or a RequestError, not with str"),
        (Fruitless(), "ended with an error: it cannot begin"),
        (AllowsNothing(), "allows no token, and gives no error"),
        (WrongMask(), "a mask must be int32"),
        (LimitsNoRow(), "rows of a mask must ascend, and be some of"),
        (DecidesForOthers(), "decides about an output that the extension does not constrain"),
        (ForcesTooMuch(), "sampled.. forces .* tokens, and there is room for"),
        (RejectsAll(), "rejects more tokens at one position than there are"),
        (RejectsAndForces(), "forces tokens after one that it rejects"),
        (EndsWithErrors(), "ended with an error: it cannot go on"),
        (Blames(), "blocking_request.. names a request, and no step blocks"),
        (FailsToCheck(), "check_step.. fails"),
    ],
)
def test_a_broken_rule_of_sampling_is_named(extension: StepExtension, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_step_extension(extension, timeout=0.05)


class Bans(StepExtension, SamplingPhase):
    """Masks odd tokens in every output, and constrains none."""

    def allowed(self, sequences: Sequence[SequenceView], *, asynchronous: bool) -> PendingMask | None:
        mask = torch.full((len(sequences), 1), 0x5555, dtype=torch.int32)
        return Ready(AllowedTokens(list(range(len(sequences))), mask))


def test_an_extension_may_limit_outputs_that_it_does_not_constrain() -> None:
    check_step_extension(Bans())
