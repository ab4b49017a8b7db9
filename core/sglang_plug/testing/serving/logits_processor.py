"""Conformance test of logits processors: the result for a row does not depend on its batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from sglang_plug.contracts.sampling_params import SamplingParams
from sglang_plug.contracts.serving.logits_processor import LogitsBatch, LogitsProcessor, LogitsRow, ProcessorRequest
from sglang_plug.contracts.text.parsers import ReasoningBlock
from sglang_plug.contracts.text.vocabulary import Vocabulary
from sglang_plug.plugins.attribution import make
from sglang_plug.plugins.registry import Plugins
from sglang_plug.plugins.request_fields import ComponentRequestFields
from sglang_plug.testing.memory import check_kept

from .waiting import META, asynchronous

CPU = torch.device("cpu")
PROMPTS = (5, 1, 40)
"""Lengths of prompts."""
STEPS = 6
LONG_STEPS = 24
"""Steps of a batch whose rows stay, more than a processor can serve by chance."""
TOLERANCE = 1e-5
MIN_LOGIT = -1e4
"""Logits below it are those of tokens that a processor forbids."""


@torch.inference_mode()
def check_logits_processor(
    processor: str | type[LogitsProcessor],
    cases: Sequence[SamplingParams],
    *,
    settings: Any = None,
    request_fields: type | None = None,
    vocabulary: int = 64,
    reasoning: ReasoningBlock | None = None,
) -> None:
    """Apply it to rows alone and together, step by step and from scratch, with rows that come and go; then on a device
    that must not be waited for.

    Args:
        processor: the class, or the name an installed plugin declared it under.
        cases: parameters of requests that use it, with its request fields in ``processor_fields``.
        settings: of the component, if ``processor`` is a class.
        request_fields: the class of its request fields, if ``processor`` is a class.
        vocabulary: tokens of the vocabulary. Give a small number if the processor acts on tokens that repeat: the
            prompts are random. A processor with ``needs_vocabulary`` is told that each is one byte, but
            for the first, which is a special token.
        reasoning: where the outputs of the requests reason.

    Raises:
        AssertionError: says what is wrong, and for which case.
        PluginError: no plugin, or more than one, declares the name.
    """
    processor_case = _ProcessorCase(processor, settings, request_fields, vocabulary, reasoning)
    on_cpu = processor_case.make(CPU)
    if processor_case.fields is None:
        unused = on_cpu.prepare(_request(SamplingParams(), None, (1, 2)))
        assert unused is None, "prepare() returned something for a request without any of its parameters, not None"
    assert cases, "cases are missing: give parameters of requests that use the processor"
    rows = processor_case.rows(on_cpu, cases)
    _check_rows_alone(on_cpu, rows, vocabulary)
    _check_done(on_cpu, rows, vocabulary)
    _check_rows_of_one_sequence(on_cpu, rows, vocabulary)
    _check_kept(processor_case, on_cpu, cases)
    if on_cpu.needs_tokens:
        _check_steps(on_cpu, rows, vocabulary)
        _check_regrouping(on_cpu, rows, vocabulary)
        _check_growing_tokens(on_cpu, rows, vocabulary)
    else:
        _check_long_batch(on_cpu, rows, vocabulary)
    _check_waiting(processor_case, cases)


@dataclass(slots=True)
class _Row:
    """A row and the tokens of its sequence, which a check adds to."""

    case: str
    state: Any
    tokens: list[int]
    prompt_len: int
    more: list[int]
    """Tokens that come next."""
    number: int
    """Random numbers of the row, whose logits are its own."""

    def after(self, steps: int) -> LogitsRow:
        return LogitsRow(state=self.state, tokens=self.tokens + self.more[:steps], prompt_len=self.prompt_len)


class _ProcessorCase:
    """A logits processor to be tested, and the rows that it is tested with."""

    def __init__(
        self,
        processor: str | type[LogitsProcessor],
        settings: Any,
        request_fields: type | None,
        vocabulary: int,
        reasoning: ReasoningBlock | None,
    ) -> None:
        self.settings, self.vocabulary, self.fields, self.reasoning = settings, vocabulary, request_fields, reasoning
        self.kind: Any = processor
        target: Any = processor
        if isinstance(processor, str):
            component = Plugins.discover().get("logits-processor", processor)
            declared = ComponentRequestFields.of(component)
            self.settings, self.fields = component.settings(), None if declared is None else declared.kind
            self.kind = lambda *arguments: make(component, *arguments, base=LogitsProcessor)
            target = component.load(LogitsProcessor)
        self.needs_vocabulary = getattr(target, "needs_vocabulary", False)

    def make(self, device: torch.device) -> LogitsProcessor:
        pieces = [b"", *(bytes([token % 256]) for token in range(1, self.vocabulary))]
        texts = (Vocabulary(pieces),) if self.needs_vocabulary else ()
        made = self.kind(self.settings, self.vocabulary, device, *texts)
        assert isinstance(made, LogitsProcessor), f"{type(made).__name__} is not a LogitsProcessor"
        return made

    def request_fields(self, params: SamplingParams) -> Any:
        """Return the processor's own fields of a request."""
        return None if self.fields is None else ComponentRequestFields.convert(self.fields, params.processor_fields)

    def rows(self, processor: LogitsProcessor, cases: Sequence[SamplingParams]) -> list[_Row]:
        generator = torch.Generator().manual_seed(len(cases))
        rows = list[_Row]()
        for params in cases:
            for length in PROMPTS:
                tokens = torch.randint(self.vocabulary, (length + STEPS,), generator=generator).tolist()
                values = self.request_fields(params)
                state = processor.prepare(_request(params, values, tuple(tokens[:length]), self.reasoning))
                case = f"{_shown(params)}, a prompt of {length} tokens"
                assert state is not None, (
                    f"{case}: prepare() returned None, as if the request did not use the processor"
                )
                rows.append(_Row(case, state, tokens[:length], length, tokens[length:], len(rows)))
        return rows


def _request(
    params: SamplingParams, fields: Any, prompt: tuple[int, ...], reasoning: ReasoningBlock | None = None
) -> ProcessorRequest:
    return ProcessorRequest(params=params, fields=fields, prompt=prompt, constrained=False, reasoning=reasoning)


def _shown(params: SamplingParams) -> str:
    """Write the parameters that a request sets."""
    values = {field.name: getattr(params, field.name) for field in fields(params)}
    arguments = [f"{name}={value!r}" for name, value in values.items() if value != getattr(SamplingParams(), name)]
    return f"SamplingParams({', '.join(arguments)})"


def _logits(row: _Row, step: int, width: int) -> Tensor:
    """Random ones, the same for a row and a step."""
    return torch.randn(width, generator=torch.Generator().manual_seed(1000 * row.number + step)) * 3


def _apply(
    batch: LogitsBatch, rows: Sequence[_Row], width: int, steps: Sequence[int], device: torch.device = CPU
) -> Tensor:
    """Return the rows' logits after so many steps."""
    logits = torch.stack([_logits(row, step, width) for row, step in zip(rows, steps, strict=True)])
    logits = logits.to(device, non_blocking=True)
    result = batch.apply(logits.clone(), list(steps))
    assert isinstance(result, Tensor), f"apply() returned {type(result).__name__}, not a tensor"
    assert (result.shape, result.dtype) == (logits.shape, logits.dtype), (
        f"apply() returned {result.dtype} {list(result.shape)} for {logits.dtype} {list(logits.shape)}"
    )
    return result


def _equal(actual: Tensor, expected: Tensor) -> bool:
    return torch.allclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)


def _are_probabilities(row: Tensor) -> bool:
    """Return True if the tokens that may come next have many different values from 0 to 1, as logits hardly ever do."""
    values = row[row > MIN_LOGIT]
    return len(set(values.tolist())) > len(row) // 4 and bool(((values >= 0) & (values <= 1)).all())


def _alone(processor: LogitsProcessor, row: _Row, steps: int, width: int) -> Tensor:
    """The row's logits after so many steps, in a batch of its own that is made from the tokens."""
    return _apply(processor.batch([row.after(steps)]), [row], width, [steps])[0]


def _check_rows_alone(processor: LogitsProcessor, rows: list[_Row], width: int) -> None:
    for order in (rows, rows[::-1]):
        together = _apply(processor.batch([row_data.after(0) for row_data in order]), order, width, [0] * len(order))
        for row, actual in zip(order, together, strict=True):
            assert not bool(actual.isnan().any()), f"{row.case}: logits became NaN"
            alone = _alone(processor, row, 0, width)
            assert not _are_probabilities(alone), (
                f"{row.case}: apply() returned probabilities, {alone.min():.3g} to {alone.max():.3g}, not logits"
            )
            assert _equal(actual, alone), f"{row.case}: the result depends on what else is in the batch"
            assert torch.equal(alone, _alone(processor, row, 0, width)), f"{row.case}: the result differs each time"
    twice = _apply(processor.batch([rows[0].after(0)] * 2), rows[:1] * 2, width, [0, 0])
    assert _equal(twice[0], twice[1]), f"{rows[0].case}: two rows of one sequence are not treated alike"


def _check_rows_of_one_sequence(processor: LogitsProcessor, rows: list[_Row], width: int) -> None:
    """Rows of one sequence with drafts are at different steps."""
    if processor.needs_tokens:
        return  # such sequences have no drafts
    steps = list(range(STEPS))
    for row in rows:
        together = _apply(processor.batch([row.after(step) for step in steps]), [row] * STEPS, width, steps)
        for step, actual in zip(steps, together, strict=True):
            assert _equal(actual, _alone(processor, row, step, width)), (
                f"{row.case}: of the rows of one sequence with drafts, row {step} depends on the others"
            )


def _check_growing_tokens(processor: LogitsProcessor, rows: list[_Row], width: int) -> None:
    """The tokens of a sequence grow while they come by ``append``, too: what is needed is copied."""
    batch_rows = [row.after(0) for row in rows]
    batch = processor.batch(batch_rows)
    batch.append(torch.tensor([row.more[0] for row in rows], dtype=torch.int64))
    for data, row in zip(batch_rows, rows, strict=True):
        assert isinstance(data.tokens, list)
        data.tokens.append(row.more[0])
    _check_batch(processor, batch, rows, [1] * len(rows), width, "when the sequence's own list of tokens has grown,")


def _check_kept(processor_case: _ProcessorCase, processor: LogitsProcessor, cases: Sequence[SamplingParams]) -> None:
    """Check that memory does not grow with the number of requests."""

    def serve(number: int) -> None:
        params = cases[number % len(cases)]
        processor.prepare(_request(params, processor_case.request_fields(params), (1, 2, 3), processor_case.reasoning))

    check_kept(serve, type(processor).__name__, requests=1000)


def _check_done(processor: LogitsProcessor, rows: list[_Row], width: int) -> None:
    for row in rows:
        done = [processor.is_done(row.state, step) for step in range(STEPS)]
        assert done == sorted(done), f"{row.case}: is_done() takes back that nothing changes any more: {done}"
        if any(done):
            step = done.index(True)
            plain = _logits(row, step, width)
            assert torch.equal(_alone(processor, row, step, width), plain), (
                f"{row.case}: it is done, and changes logits"
            )


def _check_steps(processor: LogitsProcessor, rows: list[_Row], width: int) -> None:
    """Tokens that are appended lead where the same tokens lead from the start; -1 is none."""
    batch, known = processor.batch([row_data.after(0) for row_data in rows]), [0] * len(rows)
    for step in range(STEPS):
        skipped = step % len(rows)
        _check_batch(processor, batch, rows, known, width, "after append()")
        tokens = [row.more[count] for row, count in zip(rows, known, strict=True)]
        if step % 2:
            tokens[skipped] = -1
        batch.append(torch.tensor(tokens, dtype=torch.int64))
        known = [count + (token >= 0) for count, token in zip(known, tokens, strict=True)]
    _check_batch(processor, batch, rows, known, width, "after append()")


def _check_long_batch(processor: LogitsProcessor, rows: list[_Row], width: int) -> None:
    """A batch that serves many steps gives in each what one gives that is made for the step."""
    batch = processor.batch([row.after(0) for row in rows])
    for step in range(LONG_STEPS):
        _check_batch(processor, batch, rows, [step] * len(rows), width, f"after {step} steps of a batch")


def _check_regrouping(processor: LogitsProcessor, rows: list[_Row], width: int) -> None:
    """A batch whose rows leave, stay and are joined knows what a new one would."""
    half = max(1, len(rows) // 2)
    first, second = rows[:half], rows[half:] or rows[:1]
    for kept, joining in (([0], []), (list(range(half))[::-1], second), (list(range(half)), [])):
        batch = processor.batch([row.after(0) for row in first])
        batch.append(torch.tensor([row.more[0] for row in first], dtype=torch.int64))
        fresh = processor.batch([row.after(1) for row in joining]) if joining else None
        regrouped = batch.regroup(kept, fresh)
        if regrouped is None:
            return
        members = [first[row] for row in kept] + joining
        _check_batch(processor, regrouped, members, [1] * len(members), width, "after regroup()")
        regrouped.append(torch.tensor([member.more[1] for member in members], dtype=torch.int64))
        _check_batch(processor, regrouped, members, [2] * len(members), width, "after regroup() and append()")


def _check_batch(
    processor: LogitsProcessor, batch: LogitsBatch, rows: list[_Row], known: Sequence[int], width: int, when: str
) -> None:
    results = _apply(batch, rows, width, known)
    for row, count, result in zip(rows, known, results, strict=True):
        expected = _alone(processor, row, count, width)
        assert _equal(result, expected), (
            f"{row.case}: {when} the result is not that of a batch made from the same tokens"
        )


def _check_waiting(processor_case: _ProcessorCase, cases: Sequence[SamplingParams]) -> None:
    """On a device that has no values, and with copies that would be waited for refused."""
    processor = processor_case.make(META)
    rows = processor_case.rows(processor, cases)
    tokens = torch.empty(len(rows), dtype=torch.int64, device=META)
    try:
        with asynchronous():
            batch = processor.batch([row_data.after(0) for row_data in rows])
            for step in range(LONG_STEPS):
                _apply(batch, rows, processor_case.vocabulary, [step] * len(rows), META)
                if processor.needs_tokens:
                    batch.append(tokens)
            regrouped = batch.regroup([0], processor.batch([rows[0].after(0)])) if processor.needs_tokens else None
            if regrouped is not None:
                _apply(regrouped, rows[:1] * 2, processor_case.vocabulary, [1, 1], META)
    except Exception as error:
        raise AssertionError(f"it waits for the device: {type(error).__name__}: {error}") from error
