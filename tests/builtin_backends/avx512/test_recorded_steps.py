"""Replayed prefill steps give the results of steps that are computed operation by operation."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from sglang_plug import (
    AttentionShape,
    EngineConfig,
    ForwardBatch,
    KVPool,
    Model,
    PluginOptions,
    Request,
    SamplingParams,
)
from sglang_plug.config import CacheOptions, ModelOptions
from sglang_plug_backends.avx512.attention import CompiledAttention
from sglang_plug_backends.avx512.token_recording import RECORDED_TOKENS
from sglang_plug_backends.cuda_graphs.recorded_steps import RecordedSteps
from tests.builtin_backends.avx512.test_generation import OTHERS, RECORDED, RECURRENT, Engine, Outputs, crowd, prompt

pytestmark = pytest.mark.usefixtures("compiled")
NOT_RECORDED = "Steps with prompts are not recorded"


def recorded_steps(engine: Engine) -> RecordedSteps | None:
    """Return the executor that replays steps, if the engine has one."""
    executor = engine.loop.runner.executors.by_name.get("recorded-steps")
    return executor if isinstance(executor, RecordedSteps) else None


def without_logprobs(engine: Engine) -> Outputs:
    """Run prompts of several steps while sequences decode; none asks for log-probabilities."""
    for row in range(12):
        engine.submit(f"{row}", prompt(3 + 17 * row, row), 6 + row, logprobs=False)
        engine.loop.step()
    return engine.finish()


@pytest.mark.parametrize("family", RECORDED)
def test_families_are_replayed(family: str, tiny_model: Callable[..., Any]) -> None:
    path = tiny_model(family).path
    plain, recorded = Engine(path, graphs=False), Engine(path, graphs=True)
    steps = recorded_steps(recorded)
    assert steps is not None and recorded_steps(plain) is None
    assert without_logprobs(recorded) == without_logprobs(plain)
    after_prompts = steps.replays
    assert after_prompts > 20
    assert crowd(recorded) == crowd(plain) and steps.replays > after_prompts + 10


@pytest.mark.parametrize("family", OTHERS[:3] + RECURRENT)
def test_families_that_are_not(family: str, tiny_model: Callable[..., Any]) -> None:
    engine = Engine(tiny_model(family).path, graphs=True)
    steps = recorded_steps(engine)
    without_logprobs(engine)
    assert steps is None or steps.replays == 0


def test_int8(tiny_model: Callable[..., Any]) -> None:
    path = tiny_model("llama-3.2-1b").path
    plain, recorded = (Engine(path, graphs=graphs, quantization="int8") for graphs in (False, True))
    assert without_logprobs(recorded) == without_logprobs(plain)
    assert (steps := recorded_steps(recorded)) is not None and steps.replays > 20


class Tokenwise(nn.Module):
    """A model without attention; ``scale`` computes a factor of all hidden states from the batch."""

    def __init__(self, scale: Callable[[ForwardBatch], float | Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Parameter(torch.randn(64, 32).bfloat16(), requires_grad=False)
        self.scale = scale

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return ``[T, 32]``."""
        return self.table[batch.input_ids] * self.scale(batch)


@pytest.fixture
def steps() -> RecordedSteps:
    shape = AttentionShape(heads=1, kv_heads=1, dim=32, layers=1)
    pool = KVPool.of(shape, slots=64, dtype=torch.bfloat16, device=torch.device("cpu"))
    return RecordedSteps(CompiledAttention(shape, torch.device("cpu")), pool, page_size=1)


def batch_of(tokens: int, **fields: Any) -> ForwardBatch:
    """Return the batch of one sequence, as ``CompiledAttention`` plans it."""
    slots = torch.arange(tokens)
    batch = ForwardBatch(
        input_ids=torch.arange(tokens) % 64,
        positions=slots,
        slots=slots,
        tables=slots[None],
        query_lens=[tokens],
        kv_lens=[tokens],
        **fields,
    )
    shape = AttentionShape(heads=1, kv_heads=1, dim=32, layers=1)
    CompiledAttention(shape, torch.device("cpu")).plan(batch)
    return batch


def capture(steps: RecordedSteps, scale: Callable[[ForwardBatch], float | Tensor]) -> Model:
    """Let ``steps`` record a model, and return it."""
    model = cast(Model, Tokenwise(scale))
    steps.capture(model)
    return model


@torch.inference_mode()
def test_longer_steps_are_computed_by_the_engine(steps: RecordedSteps) -> None:
    model = capture(steps, lambda batch: 2.0)
    longest = steps.hidden(model, batch_of(RECORDED_TOKENS))
    assert longest is not None and torch.equal(longest, model(batch_of(RECORDED_TOKENS)))
    assert steps.hidden(model, batch_of(RECORDED_TOKENS + 1)) is None and steps.replays == 1


@torch.inference_mode()
def test_a_model_that_depends_on_the_number_of_tokens_is_found_out(
    steps: RecordedSteps, caplog: pytest.LogCaptureFixture
) -> None:
    model = capture(steps, lambda batch: float(len(batch.input_ids)))
    with caplog.at_level(logging.INFO):
        hidden = steps.hidden(model, batch_of(5))
    assert hidden is not None and torch.equal(hidden, model(batch_of(5)))
    assert NOT_RECORDED in caplog.text and steps.hidden(model, batch_of(5)) is None


@pytest.mark.parametrize(
    ("scale", "reason"),
    [
        (lambda batch: float(batch.kv_lens[0]), "it reads the lengths of sequences on the host"),
        (lambda batch: float(len(batch.query_lens)), "it reads the lengths of sequences on the host"),
        (lambda batch: float(batch.positions.max()), "aten::_local_scalar_dense"),
    ],
)
def test_models_that_cannot_be_recorded(
    steps: RecordedSteps, caplog: pytest.LogCaptureFixture, scale: Callable[[ForwardBatch], float | Tensor], reason: str
) -> None:
    with caplog.at_level(logging.INFO):
        model = capture(steps, scale)
    assert reason in caplog.text
    with torch.inference_mode():
        assert steps.hidden(model, batch_of(5)) is None


@torch.inference_mode()
def test_a_model_that_makes_tensors_for_a_number_of_tokens_is_computed_by_the_engine(
    steps: RecordedSteps, caplog: pytest.LogCaptureFixture
) -> None:
    def scale(batch: ForwardBatch) -> Tensor:
        return torch.full((len(batch.input_ids), 32), 2.0).bfloat16()

    with caplog.at_level(logging.INFO):
        model = capture(steps, scale)
        assert steps.hidden(model, batch_of(RECORDED_TOKENS)) is not None
        assert steps.hidden(model, batch_of(5)) is None
    assert NOT_RECORDED in caplog.text and steps.replays == 1


@torch.inference_mode()
def test_another_model_is_recorded_anew(steps: RecordedSteps) -> None:
    first = capture(steps, lambda batch: 2.0)
    assert steps.hidden(first, batch_of(3)) is not None
    second = cast(Model, Tokenwise(lambda batch: 3.0))
    hidden = steps.hidden(second, batch_of(3))
    assert hidden is not None and torch.equal(hidden, second(batch_of(3)))


@torch.inference_mode()
def test_steps_with_images_are_computed_by_the_engine(steps: RecordedSteps) -> None:
    model = capture(steps, lambda batch: 2.0)
    assert steps.hidden(model, batch_of(3, multimodal=object())) is None


@torch.inference_mode()
def test_steps_without_results_prove_nothing(steps: RecordedSteps) -> None:
    """Steps without output rows do not validate a recording; the last step of a prompt does."""
    model = capture(steps, lambda batch: float(len(batch.input_ids)))
    for tokens in range(2, 9):
        assert steps.hidden(model, batch_of(tokens, output_rows=[])) is not None
    hidden = steps.hidden(model, batch_of(9, output_rows=[8]))
    assert hidden is not None and torch.equal(hidden, model(batch_of(9)))
    assert steps.hidden(model, batch_of(9)) is None


@pytest.mark.parametrize("block", ["cuda_graphs", "step-extension:recorded-steps"])
def test_outputs_are_the_same_without_the_extension(
    tiny_model: Callable[[str], Any], serve: Callable[..., Any], block: str
) -> None:
    path = tiny_model("llama-3.2-1b").path
    requests = [
        Request(id=f"{row}", tokens=tuple(range(5, 40 + row)), params=SamplingParams(max_new_tokens=8, temperature=0.0))
        for row in range(3)
    ]
    outputs = []
    for blocked in ((), (block,)):
        config = EngineConfig(
            model=ModelOptions(path=str(path), device="cpu", dtype="bfloat16"),
            cache=CacheOptions(max_total_tokens=256),
            plugins=PluginOptions(block=blocked),
        )
        outputs.append([output.tokens for output in serve(config).outputs(requests)])
    assert outputs[0] == outputs[1] and all(len(tokens) == 8 for tokens in outputs[1])
