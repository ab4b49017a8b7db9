"""Extension points hold the methods that extensions override, and no others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from sglang_plug import (
    AdmissionPhase,
    ChunkView,
    ConfigError,
    Constraint,
    Finish,
    ForwardBatch,
    LogprobOptions,
    PlanningPhase,
    PreemptionPhase,
    RankPhase,
    RankStep,
    Request,
    RequestError,
    SamplingParams,
    SamplingPhase,
    SequenceView,
    ServicePhase,
    StepBudgetPhase,
    StepExtension,
    StepPlan,
    TensorStorePhase,
    TokenDecision,
)
from sglang_plug.engine.extensions.points import ExtensionPoints, extension_points
from sglang_plug.engine.sequences.sequence import Sequence as EngineSequence

NUMBERS = torch.zeros(0, dtype=torch.int64)
BATCH = ForwardBatch(
    input_ids=NUMBERS, positions=NUMBERS, slots=NUMBERS, tables=NUMBERS.view(0, 0), query_lens=[], kv_lens=[]
)


class Drafts(StepExtension, PlanningPhase):
    max_draft_rows = 7

    def plan(self, step: StepPlan) -> None: ...


class Watches(StepExtension, AdmissionPhase, PlanningPhase):
    def finished(self, sequence: SequenceView) -> None: ...

    def waits_for(self, chunks: Sequence[ChunkView]) -> bool:
        return True


def test_without_extensions_every_list_is_empty() -> None:
    assert extension_points({}) == ExtensionPoints()


def test_only_overridden_methods_are_collected_in_order() -> None:
    drafts, watches = Drafts(), Watches()
    points = extension_points({"watches": watches, "drafts": drafts})
    assert points.planning.plan == (drafts.plan,) and points.requests.finished == (watches.finished,)
    assert points.planning.waits_for == (watches.waits_for,)
    assert points.requests.verified == points.requests.output == ()
    assert points.service.close == points.service.controls == ()


def test_memory_is_reserved_for_the_largest_step_with_drafts() -> None:
    assert extension_points({"drafts": Drafts(), "watches": Watches()}).start.max_draft_rows == 7


def test_a_method_of_a_phase_that_is_not_inherited_is_never_called() -> None:
    class Loose(StepExtension):
        def plan(self, step: StepPlan) -> None: ...

    assert extension_points({"loose": Loose()}).planning.plan == ()


class Budgets(StepExtension, StepBudgetPhase):
    """A step extension that sets the number of prompt tokens of a step."""


class Preemptions(StepExtension, PreemptionPhase):
    """A step extension that preempts sequences."""


def test_one_extension_at_most_preempts() -> None:
    preemptions = Preemptions()
    assert extension_points({"one": preemptions, "budgets": Budgets()}).planning.preemption is preemptions
    assert not extension_points({}).planning.preemption.preemption_due()
    with pytest.raises(
        ConfigError, match="step-extension 'one' and step-extension 'two' preempt running sequences; keep one of them"
    ):
        extension_points({"one": preemptions, "two": Preemptions()})


def test_one_extension_at_most_chooses_the_number_of_prompt_tokens() -> None:
    budgets = Budgets()
    assert extension_points({"one": budgets, "drafts": Drafts()}).planning.step_budget is budgets
    assert extension_points({"drafts": Drafts()}).planning.step_budget.prompt_budget([]) is None
    with pytest.raises(ConfigError, match="step-extension 'two' choose how many prompt tokens a step has; keep one"):
        extension_points({"one": budgets, "two": Budgets()})


class Keyed(StepExtension, AdmissionPhase, RankPhase):
    def __init__(self, key: str, data: bytes | None = None) -> None:
        self.key, self.data = key, data

    def cache_key(self, sequence: SequenceView) -> str:
        return self.key

    def rank_step(self, chunks: Sequence[ChunkView], batch: ForwardBatch) -> RankStep | None:
        return None if self.data is None else RankStep(self.data)


def admitted(points: ExtensionPoints, salt: str = "", adapter: str | None = None) -> EngineSequence:
    sequence = EngineSequence.of(Request(id="1", tokens=(1,), salt=salt, adapter=adapter), 9)
    points.requests.admit_sequence(sequence)
    return sequence


def test_no_two_combinations_of_keys_and_salt_share_a_namespace() -> None:
    assert admitted(ExtensionPoints(), "s").salt == "/s"
    combinations = [("", "", "ab"), ("", "ab", ""), ("a", "b", ""), ("ab", "", ""), ("a", "", "b"), ("", "", "2:ab")]
    salts = {
        admitted(extension_points({"first": Keyed(first), "second": Keyed(second)}), salt).salt
        for first, second, salt in combinations
    }
    assert len(salts) == len(combinations)


def test_fields_that_nobody_serves_are_refused() -> None:
    points = extension_points({}, {"adapter": "adapter: nobody serves it"})
    assert admitted(points).salt == ""
    with pytest.raises(RequestError, match="adapter: nobody serves it"):
        admitted(points, adapter="x")


class LaysOut(StepExtension, AdmissionPhase):
    def layout(self, sequence: SequenceView) -> Any:
        return self


def test_two_layouts_of_one_prompt_are_an_error_that_names_both() -> None:
    layout, other = LaysOut(), LaysOut()
    assert admitted(extension_points({"one": layout, "watches": Watches()})).layout is layout
    with pytest.raises(
        RequestError, match="step-extension 'one' and step-extension 'two' lay out this prompt"
    ) as refused:
        admitted(extension_points({"one": layout, "two": other}))
    assert refused.value.status == 500


class Counts(StepExtension, AdmissionPhase):
    def __init__(self, refuses: bool = False) -> None:
        self.refuses, self.open = refuses, 0

    def admit(self, sequence: SequenceView) -> None:
        if self.refuses:
            raise RequestError("no")
        self.open += 1

    def finished(self, sequence: SequenceView) -> None:
        self.open -= 1


def test_those_that_admitted_a_refused_request_know_that_it_is_over() -> None:
    first, refuses, last = Counts(), Counts(refuses=True), Counts()
    points = extension_points({"first": first, "refuses": refuses, "last": last})
    with pytest.raises(RequestError, match="no"):
        admitted(points)
    assert [extension.open for extension in (first, refuses, last)] == [0, 0, 0]
    accepting = extension_points({"first": first, "last": last})
    accepting.requests.end_sequence(admitted(accepting))
    assert first.open == last.open == 0


def test_worker_ranks_are_told_by_the_name_of_the_extension() -> None:
    points = extension_points({"one": Keyed("", b"step data"), "two": Keyed("")})
    assert points.forward.rank_steps([], BATCH) == {"one": RankStep(b"step data")}
    assert extension_points({"two": Keyed("")}).forward.rank_steps([], BATCH) == {}
    assert (
        list(points.forward.rank_step) == ["one", "two"]
        and points.forward.prepare_step == points.forward.handle_command == {}
    )


class Constrains(StepExtension, SamplingPhase):
    def __init__(self, decision: TokenDecision | None = None) -> None:
        self.decision = decision

    def constrains(self, request: Request) -> bool:
        return self.decision is not None

    def sampled(self, sequences: Sequence[SequenceView], tokens: Sequence[int]) -> Mapping[int, TokenDecision]:
        return {} if self.decision is None else {tokens[0]: self.decision}


def constrained_sequence(
    *, constrained: bool = True, max_new_tokens: int = 4, logprobs: LogprobOptions | None = None
) -> EngineSequence:
    request = Request(id="1", tokens=(1,), params=SamplingParams(max_new_tokens=max_new_tokens), logprobs=logprobs)
    return EngineSequence.of(request, 9, constrained=constrained)


def test_one_extension_at_most_constrains_a_sequence() -> None:
    request = Request(id="1", tokens=(1,))
    decision = TokenDecision(rejected=True)
    assert not ExtensionPoints().requests.is_constrained(request)
    points = extension_points({"idle": Constrains(), "one": Constrains(decision)})
    assert points.requests.is_constrained(request)
    assert points.sampling.decisions([constrained_sequence()], [0]) == {0: decision}
    with pytest.raises(RequestError, match="step-extension 'one' and step-extension 'two' constrain this output"):
        extension_points({"one": Constrains(decision), "two": Constrains(decision)}).requests.is_constrained(request)


@pytest.mark.parametrize(
    ("decisions", "sequence", "message"),
    [
        (
            [TokenDecision(rejected=True), TokenDecision()],
            constrained_sequence(),
            "'0' and step-extension '1' both decide",
        ),
        ([TokenDecision()], constrained_sequence(constrained=False), "'0': .* an output that it does not constrain"),
        ([TokenDecision(forced=(5,) * 4)], constrained_sequence(), r"'0': sampled\(\) forces 4 tokens, .* room for 3"),
        (
            [TokenDecision(forced=(5,) * 3)],
            constrained_sequence(logprobs=LogprobOptions()),
            r"'0': sampled\(\) forces 3 tokens, .* room for 2",
        ),
        (
            [TokenDecision(Finish("stop"), forced=(5,))],
            constrained_sequence(logprobs=LogprobOptions()),
            r"'0': sampled\(\) ends the output with forced tokens, whose log-probabilities .* not known",
        ),
    ],
)
def test_a_wrong_decision_ends_the_request_with_an_error_that_names_the_extensions(
    decisions: list[TokenDecision], sequence: EngineSequence, message: str
) -> None:
    points = extension_points({str(number): Constrains(decision) for number, decision in enumerate(decisions)})
    error = points.sampling.decisions([sequence], [0])[0].error
    assert error is not None and error.status == 500 and re.search(message, str(error))


@pytest.mark.parametrize("token", [-1, 100])
def test_a_forced_token_outside_of_the_vocabulary_ends_the_request(token: int) -> None:
    points = extension_points({"one": Constrains(TokenDecision(forced=(5, token)))}, vocab_size=100)
    error = points.sampling.decisions([constrained_sequence()], [0])[0].error
    assert f"step-extension 'one': sampled() forces token {token}, and the vocabulary has 100" in str(error)


def test_forced_tokens_up_to_the_limit_are_no_error() -> None:
    decision = TokenDecision(forced=(5,) * 3)
    assert extension_points({"one": Constrains(decision)}).sampling.decisions([constrained_sequence()], [0]) == {
        0: decision
    }


def test_a_decision_about_another_row_is_an_error_that_names_the_extension() -> None:
    points = extension_points({"one": Constrains(TokenDecision())}, labels={"one": "step-extension 'one' from there"})
    with pytest.raises(RuntimeError, match=r"^step-extension 'one' from there: sampled\(\) decides about row 3 of 1"):
        points.sampling.decisions([constrained_sequence()], [3])


class Stores(StepExtension, TensorStorePhase):
    def __init__(self, store: Any = None) -> None:
        self.store, self.received = store, list[Any]()

    def tensor_store(self) -> Any:
        return self.store

    def use_tensor_store(self, store: Any) -> None:
        self.received.append(store)


def test_two_stores_of_tensors_are_an_error_that_names_both() -> None:
    uses = Stores()
    extension_points({"one": Stores("a store"), "uses": uses}).start.share_tensor_store()
    assert uses.received == ["a store"]
    with pytest.raises(ConfigError, match="'one' and step-extension 'two' have a store of tensors"):
        extension_points({"one": Stores("a"), "uses": uses, "two": Stores("b")}).start.share_tensor_store()


class Fails(Counts):
    def finished(self, sequence: SequenceView) -> None:
        super().finished(sequence)
        raise KeyError("a fault in finished")


def test_finished_is_called_for_each_extension_even_if_one_of_them_fails(caplog: pytest.LogCaptureFixture) -> None:
    fails, last, refuses = Fails(), Counts(), Counts(refuses=True)
    with pytest.raises(RequestError, match="no"):
        admitted(extension_points({"fails": fails, "last": last, "refuses": refuses}))
    assert fails.open == last.open == 0 and "step-extension 'fails': finished() failed" in caplog.text
    accepting = extension_points({"fails": fails, "last": last})
    accepting.requests.end_sequence(admitted(accepting))
    assert fails.open == last.open == 0


def test_a_refusal_names_the_part_of_the_request() -> None:
    points = extension_points({}, {"constraint": "constraint: nobody serves it", "adapter": "adapter: nobody"})
    with pytest.raises(RequestError, match="constraint: nobody") as caught:
        points.requests.admit_sequence(
            EngineSequence.of(Request(id="1", tokens=(1,), constraint=Constraint("regex")), 9)
        )
    assert caught.value.about == "constraint"
    with pytest.raises(RequestError, match="adapter: nobody") as caught:
        admitted(points, adapter="x")
    assert caught.value.about == ""


class Idle(StepExtension, ServicePhase):
    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout

    def idle_timeout(self) -> float | None:
        return self.timeout


@pytest.mark.parametrize(("timeouts", "shortest"), [((3.0, -0.1), 0.0), ((None, 2.0), 2.0), ((None,), None)])
def test_an_idle_engine_does_not_wait_for_a_time_that_has_passed(
    timeouts: tuple[float | None, ...], shortest: float | None
) -> None:
    points = extension_points({str(number): Idle(timeout) for number, timeout in enumerate(timeouts)})
    assert points.service.shortest_idle_timeout() == shortest


class Adapted(StepExtension, AdmissionPhase):
    def cache_key(self, sequence: SequenceView) -> str:
        return "digest"


def salt(caller: str, *extensions: StepExtension) -> str:
    """Return the salt of a sequence whose caller sets one."""
    sequence = EngineSequence.of(Request(id="one", tokens=(1, 2), salt=caller), 100)
    extension_points({str(number): extension for number, extension in enumerate(extensions)}).requests.admit_sequence(
        sequence
    )
    return sequence.salt


@pytest.mark.parametrize("caller", ["", "tenant"])
def test_no_salt_of_a_caller_is_that_of_an_extension(caller: str) -> None:
    adapted = salt(caller, Adapted())
    for imitated in (adapted, adapted[1:], f"6:digest{caller}", f"6:digest/{caller}", f"/6:digest{caller}"):
        assert salt(imitated) != adapted, "another server, without the extension"
