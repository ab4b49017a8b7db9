"""Logits processors in a whole engine: outputs do not depend on how the steps are batched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from sglang_plug import (
    Constraint,
    EngineConfig,
    LogitsBatch,
    LogitsProcessor,
    LogitsRow,
    PluginOptions,
    Plugins,
    ProcessorRequest,
    Request,
    RequestError,
    SamplingParams,
)
from sglang_plug.config import CacheOptions, ScheduleOptions
from sglang_plug.engine.sampling.processors import LogitsProcessors
from sglang_plug.engine.sampling.sampler import Sampler
from sglang_plug.engine.sequences.launched_step import LaunchedStep
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.plugins.request_fields import RequestFields
from sglang_plug.testing import check_logits_processor
from tests import steering_plugin
from tests.steering_plugin import NoRepeat, SteerFields, Steering, WindowFields

from .sampling_cases import read

FILE = Path(str(steering_plugin.__file__))
COUNT = 24
VOCABULARY = 64


def request(id: str, prompt: int = 5, constraint: Constraint | None = None, **params: Any) -> Request:
    tokens = tuple(20 + (prompt * 7 + index * 3) % 50 for index in range(prompt))
    fields = {name: params.pop(name) for name in ("steer", "steer_until", "no_repeat_window") if name in params}
    params = {"max_new_tokens": COUNT, "temperature": 0.0, **params}
    return Request(
        id=id, tokens=tokens, params=SamplingParams(processor_fields=fields, **params), constraint=constraint
    )


def all_kinds() -> list[Request]:
    """Return requests, each with another prompt, that use several processors, one processor or none."""
    return [
        request("plain", 4),
        request("window", 5, no_repeat_window=4),
        request("penalised", 6, frequency_penalty=0.8, repetition_penalty=1.3),
        request("seeded", 7, temperature=1.2, seed=4, no_repeat_window=6, presence_penalty=0.5),
        request("steered", 8, steer={"token": 40, "strength": 5.0}, steer_until=9),
        request("both", 9, steer={"token": 41}, no_repeat_window=1),
        request("bias", 10, logit_bias={42: 3.0}, temperature=0.9, seed=1),
        request("long", 60, no_repeat_window=3, min_new_tokens=8, stop_token_ids=tuple(range(0, 300, 2))),
    ]


@pytest.fixture
def ask(serve: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Return ``ask(requests, **options of the scheduler)``: serve all at once, or one after the other if ``apart``."""

    def served_outputs(
        requests: list[Request], *, pool: int = 2048, errors: bool = False, apart: bool = False, **options: Any
    ) -> list[Any]:
        config = EngineConfig(
            cache=CacheOptions(max_total_tokens=pool),
            schedule=ScheduleOptions(**options),
            plugins=PluginOptions(files=(str(FILE),)),
            log_level="warning",
        )
        served = serve(config)
        if apart:
            return [output for request in requests for output in served.outputs([request])]
        return list(served.outcomes(requests) if errors else served.outputs(requests))

    return served_outputs


def test_each_output_is_what_it_is_alone(ask: Callable[..., list[Any]]) -> None:
    alone = ask(all_kinds(), apart=True)
    assert all(output.finish is not None and output.finish.reason != "error" for output in alone)
    together = ask(all_kinds())
    assert [output.tokens for output in together] == [output.tokens for output in alone]
    few = ask(all_kinds(), max_running_requests=3, chunked_prefill_size=16)
    assert [output.tokens for output in few] == [output.tokens for output in alone]
    window = next(output for output in alone if output.id == "window")
    assert all(token not in window.tokens[max(0, index - 4) : index] for index, token in enumerate(window.tokens))
    both = next(output for output in alone if output.id == "both")
    assert both.tokens[::2] == (41,) * (COUNT // 2)


def test_an_output_is_the_same_after_retractions(ask: Callable[..., list[Any]]) -> None:
    expected = ask(all_kinds())
    crowded = ask(all_kinds(), pool=120)
    assert sum(output.retractions for output in crowded) > 0
    assert [output.tokens for output in crowded] == [output.tokens for output in expected]


def test_a_processor_that_fails_ends_its_own_requests_only(ask: Callable[..., list[Any]]) -> None:
    (plain,) = ask([request("plain", 4)])
    bad = [request(str(token), token, steer={"token": 14}) for token in (5, 6, 7, 8)]
    mixed = [bad[0], request("plain", 4), *bad[1:], request("13", 9, steer={"token": 13})]
    first, other, *more, last = ask(mixed, errors=True)
    assert other.tokens == plain.tokens
    for error, text in ((first, "fourteen"), *((later, "fourteen") for later in more), (last, "thirteen")):
        assert isinstance(error, RequestError) and error.status == 500
        assert "logits-processor 'steer' from" in str(error) and str(error).endswith(f"failed: RuntimeError: {text}")


def test_a_processor_that_cannot_say_whether_it_is_done_ends_its_own_requests_only(ask: Callable[..., Any]) -> None:
    (plain,) = ask([request("plain", 4)])
    error, other = ask([request("15", 5, steer={"token": 15}), request("plain", 4)], errors=True)
    assert isinstance(error, RequestError) and (error.status, str(error)[-9:]) == (500, ": fifteen")
    assert other.tokens == plain.tokens


@pytest.mark.parametrize(
    ("params", "field", "message"),
    [
        ({"steer": {"token": -1}}, "steer", "steer: there is no token -1"),
        ({"steer": {"token": "a"}}, "steer.token", "steer.token must be an integer, not text"),
        ({"no_repeat_window": "a"}, "no_repeat_window", "no_repeat_window must be an integer or null, not text"),
        ({"steer": {"token": 3, "strength": -1.0}}, "steer", "steer: strength must be more than 0, got -1.0"),
    ],
)
def test_the_engine_refuses_wrong_values(ask: Callable[..., list[Any]], params: Any, field: str, message: str) -> None:
    (error,) = ask([request("a", **params)], errors=True)
    assert isinstance(error, RequestError)
    assert (str(error), error.status, error.about, error.field) == (message, 400, "processor_fields", field)


REFUSING = """
from dataclasses import dataclass

from sglang_plug import LogitsProcessor, LogitsProcessorSpec, hookimpl


@hookimpl
def register_logits_processors():
    target, fields = f"{__name__}:Refusing", f"{__name__}:Fields"
    yield LogitsProcessorSpec(name="x", target=target, sampling_params=("logit_bias",), request_fields=fields)


@dataclass
class Fields:
    level: int = 0
    level_until: int = 0
    text: str = ""


class Refusing(LogitsProcessor):
    def prepare(self, request):
        raise ValueError(request.fields.text or "logit_bias is not for today")

    def batch(self, rows):
        raise AssertionError("no step is computed")
"""


@pytest.mark.parametrize(
    ("params", "message", "field"),
    [
        ({"level": 3, "text": "level is low"}, "level is low", "level"),
        ({"level": 3, "text": "level_until is low"}, "level_until is low", "level_until"),
        ({"level": 3, "text": "That is low"}, "level: That is low", "level"),
        ({}, "logit_bias is not for today", "logit_bias"),
    ],
)
def test_a_refusal_of_a_processor_is_about_the_field_that_its_text_begins_with(
    tmp_path: Path, params: dict[str, Any], message: str, field: str
) -> None:
    """A refusal that does not begin with a field's name is attributed to the first field that the request sets."""
    (tmp_path / "refusing.py").write_text(REFUSING)
    options = PluginOptions(files=(str(tmp_path / "refusing.py"),), block=("logits-processor:logit-bias",))
    plugins = Plugins.discover(options)
    processors = LogitsProcessors.build(plugins, RequestFields.of(plugins), VOCABULARY, torch.device("cpu"))
    sampling = SamplingParams(processor_fields=params, logit_bias={} if params else {3: 1.0})
    with pytest.raises(RequestError) as caught:
        processors.admit(Request(id="a", tokens=(1,), params=sampling))
    error = caught.value
    assert (str(error), error.about, error.field) == (message, "processor_fields", field)


def test_sequences_may_leave_while_their_tokens_are_on_the_device() -> None:
    """Rows that end while a further step is launched do not change the tokens of the other rows."""
    plugins = Plugins.discover(PluginOptions(files=(str(FILE),)))
    admit = LogitsProcessors.build(plugins, RequestFields.of(plugins), 300, torch.device("cpu")).admit

    def sequences() -> list[Sequence]:
        return [Sequence.of(request, 1 << 20, processors=admit(request)) for request in all_kinds()]

    steps = [torch.randn(8, 300, generator=torch.Generator().manual_seed(step)).round() * 9 for step in range(7)]
    going = [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 5, 7], [1, 2, 3, 5, 7], [3, 2, 1], [1], [1]]
    known, ahead, sampler = sequences(), sequences(), Sampler()
    pending: tuple[list[int], LaunchedStep] | None = None
    for rows, logits in zip(going, steps, strict=True):
        expected = [read(Sampler().sample(logits[[row]], [known[row]]))[0][0] for row in rows]
        for row, token in zip(rows, expected, strict=True):
            known[row].tokens.append(token)
        step = sampler.sample(logits[rows], [ahead[row] for row in rows], ahead=[int(pending is not None)] * len(rows))
        if pending is not None:
            for row, token in zip(pending[0], read(pending[1])[0], strict=True):
                ahead[row].tokens.append(token)
        pending = rows, step
        assert read(step)[0] == expected and not any(result.error for result in step.results())


DECLARING = """
from dataclasses import dataclass

from sglang_plug import LogitsBatch, LogitsProcessor, LogitsProcessorSpec, hookimpl


@hookimpl
def register_logits_processors():
    names = {"name": "any"}, {"name": "param", "sampling_params": ("logit_bias",)}
    names += ({"name": "both", "sampling_params": ("min_new_tokens",), "request_fields": f"{__name__}:Fields"},)
    for fields in names:
        yield LogitsProcessorSpec(target=f"{__name__}:NoSteps", **fields)


@dataclass
class Fields:
    declared_field: int = 7


class NoSteps(LogitsProcessor):
    def prepare(self, request):
        return request.fields or 1

    def batch(self, rows):
        raise AssertionError("no step is computed")
"""


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {"any": None}),
        ({"logit_bias": {3: 1.0}}, {"any": None, "param": None}),
        ({"min_new_tokens": 1}, {"any": None, "both": 7}),
        ({"processor_fields": {"declared_field": 2}}, {"any": None, "both": 2}),
    ],
)
def test_processors_are_asked_by_requests_that_set_what_they_declare(
    tmp_path: Path, params: dict[str, Any], expected: dict[str, Any]
) -> None:
    file = tmp_path / "declaring_processors.py"
    file.write_text(DECLARING)
    built_in = tuple(f"logits-processor:{name}" for name in ("logit-bias", "min-new-tokens", "penalties"))
    plugins = Plugins.discover(PluginOptions(files=(str(file),), block=built_in))
    processors = LogitsProcessors.build(plugins, RequestFields.of(plugins), VOCABULARY, torch.device("cpu"))
    uses = processors.admit(Request(id="a", tokens=(1,), params=SamplingParams(**params)))
    assert {use.loaded.component.spec.name: getattr(use.state, "declared_field", None) for use in uses} == expected


def test_processors_know_of_tokens_that_a_grammar_forces(ask: Callable[..., list[Any]]) -> None:
    """A digit is forbidden after an equal digit, which the processor must also see when the grammar forces it."""
    constraint = Constraint("regex", "(and so it goes on [01])+")
    plain, windowed = (
        ask([request("a", 5, constraint, max_new_tokens=60, **params)])[0] for params in ({}, {"no_repeat_window": 1})
    )
    assert plain.tokens and windowed.tokens
    assert all(token != other for token, other in zip(windowed.tokens, windowed.tokens[1:], strict=False))


STEERED = SamplingParams(processor_fields={"steer": {"token": 3, "strength": 2.0}, "steer_until": 3})
WINDOWED = [SamplingParams(processor_fields={"no_repeat_window": size}) for size in (1, 4)]


def test_the_kit_accepts_processors_that_keep_the_contract() -> None:
    check_logits_processor(Steering, [STEERED], request_fields=SteerFields)
    check_logits_processor(NoRepeat, WINDOWED, request_fields=WindowFields)


class Wrong(LogitsProcessor):
    """A logits processor whose batch class a test replaces with a wrong one."""

    needs_tokens = True
    batch_type: type[LogitsBatch]

    def prepare(self, request: ProcessorRequest) -> Any:
        return 1 if request.params.min_p else None

    def batch(self, rows: Any) -> LogitsBatch:
        return self.batch_type(rows, self.device)  # type: ignore[call-arg]


class Right(LogitsBatch):
    """A correct batch, which subtracts the number of tokens from the logits."""

    def __init__(self, rows: list[LogitsRow], device: Any) -> None:
        self.counts = torch.tensor([float(len(row.tokens)) for row in rows]).to(device, non_blocking=True)

    def apply(self, logits: Any, generated: Any) -> Any:
        return logits - self.counts[:, None]

    def append(self, tokens: Any) -> None:
        self.counts = self.counts + (tokens >= 0)


class DependsOnOthers(Right):
    def apply(self, logits: Any, generated: Any) -> Any:
        return logits - logits.mean()


class Forgets(Right):
    def append(self, tokens: Any) -> None:
        pass


class CountsNothing(Right):
    def append(self, tokens: Any) -> None:
        self.counts = self.counts + 1


class Waits(Right):
    def apply(self, logits: Any, generated: Any) -> Any:
        return logits - self.counts.max().item() * 0 - self.counts[:, None]


class Reads(Right):
    def append(self, tokens: Any) -> None:
        self.counts = self.counts + torch.tensor([float(token >= 0) for token in tokens.tolist()])


class WrongLater(Wrong):
    """A processor that does not ask for tokens, for batches that become wrong in the fourth step."""

    needs_tokens = False


class Stops(Right):
    steps = 0

    def apply(self, logits: Any, generated: Any) -> Any:
        self.steps += 1
        return logits - 1 if self.steps < 4 else logits


class Narrows(Right):
    def apply(self, logits: Any, generated: Any) -> Any:
        return logits[:, 1:]


class GivesProbabilities(Right):
    def apply(self, logits: Any, generated: Any) -> Any:
        return logits.softmax(-1).masked_fill_(logits < -3, -torch.inf)


class Regroups(Right):
    def regroup(self, rows: Any, joining: Any) -> Any:
        return self


class KeepsTheRows(Right):
    """A batch that reads the tokens of its rows too late, when further tokens have been appended."""

    def __init__(self, rows: list[LogitsRow], device: Any) -> None:
        super().__init__(rows, device)
        self.rows = [row.tokens for row in rows]
        self.known = [len(tokens) for tokens in self.rows]

    def apply(self, logits: Any, generated: Any) -> Any:
        grown = [len(tokens) - known for tokens, known in zip(self.rows, self.known, strict=True)]
        return super().apply(logits, generated) - max(grown)


@pytest.mark.planted_bug("logits-processor")
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (DependsOnOthers, "depends on what else is in the batch"),
        (Forgets, r"after append\(\) the result is not that of a batch made from the same tokens"),
        (CountsNothing, r"after append\(\) the result is not"),
        (Waits, "it waits for the device"),
        (Reads, "it waits for the device"),
        (Narrows, "returned torch.float32"),
        (GivesProbabilities, "returned probabilities, .* not logits"),
        (Regroups, "regroup"),
        (KeepsTheRows, "when the sequence's own list of tokens has grown"),
    ],
)
def test_the_kit_refuses_what_breaks_the_contract(kind: type[Right], message: str) -> None:
    wrong = type("Wrong", (Wrong,), {"batch_type": kind})
    with pytest.raises((AssertionError, IndexError, RuntimeError), match=message):
        check_logits_processor(wrong, [SamplingParams(min_p=0.1)])


@pytest.mark.planted_bug("logits-processor")
def test_the_kit_refuses_a_batch_that_stops_to_work() -> None:
    wrong = type("Wrong", (WrongLater,), {"batch_type": Stops})
    with pytest.raises(AssertionError, match="after 3 steps of a batch the result is not that of a batch made from"):
        check_logits_processor(wrong, [SamplingParams(min_p=0.1)])


class OneStepForAll(Right):
    """A batch that gives all rows of a sequence with drafts the same step number."""

    def apply(self, logits: Any, generated: Any) -> Any:
        return logits - float(min(generated))


@pytest.mark.planted_bug("logits-processor")
def test_the_kit_refuses_rows_of_one_sequence_that_share_a_step() -> None:
    wrong = type("Wrong", (WrongLater,), {"batch_type": OneStepForAll})
    with pytest.raises(AssertionError, match="of the rows of one sequence with drafts, row 1 depends on the others"):
        check_logits_processor(wrong, [SamplingParams(min_p=0.1)])


class KeepsRequests(WrongLater):
    batch_type = Right
    kept: ClassVar[list[Any]] = []

    def prepare(self, request: ProcessorRequest) -> Any:
        self.kept.append((request.prompt, request))
        return super().prepare(request)


@pytest.mark.planted_bug("logits-processor")
def test_the_kit_refuses_requests_that_are_kept() -> None:
    with pytest.raises(AssertionError, match="keeps .* bytes of each request that has ended"):
        check_logits_processor(KeepsRequests, [SamplingParams(min_p=0.1)])


def test_the_kit_accepts_the_right_one() -> None:
    check_logits_processor(type("Good", (Wrong,), {"batch_type": Right}), [SamplingParams(min_p=0.1)])
